//! The commands for the operations on a volume, to be copied from the page, with the path of the
//! configuration and the names of the devices that they are for.

use std::path::Path;

use bimetal_console::shell::shell_word;
use serde_json::{Value, json};

use crate::figures::{Figures, entries};

/// Name that stands for a device which the operator adds to the configuration.
const NEW: &str = "NEW";

/// What the commands are for.
pub(super) struct Subject<'a> {
    /// Path of the configuration.
    pub(super) file: &'a Path,
    /// Status of the devices of the volume.
    pub(super) status: &'a Value,
    pub(super) volume: &'a str,
    /// Device of the configuration that nothing uses, if there is one.
    pub(super) spare: Option<&'a str>,
    pub(super) pid: u32,
}

/// Returns the commands in groups, each with a title.
pub(super) fn groups(subject: &Subject) -> Vec<Value> {
    let file = shell_word(&subject.file.display().to_string());
    let volume = shell_word(subject.volume);
    let devices = &subject.status["devices"];
    let mut groups = Vec::new();
    for (name, device) in entries(devices) {
        let figures = Figures::of(device);
        match figures.kind() {
            "mirror" => of_mirror(&mut groups, &file, name, &figures, subject.spare),
            "cache" => groups.push(of_cache(&file, name, &figures)),
            _ => {}
        }
    }
    for (path, attached) in entries(&subject.status["attached"]) {
        groups.extend(of_attached(path, attached));
    }
    groups.push(group(
        "Server",
        &[
            (
                "Watch it on a terminal",
                format!("bimetal status --watch {file}"),
            ),
            (
                "Follow its events",
                format!("bimetal events --follow {file}"),
            ),
            (
                "Record the requests of a minute as a trace",
                format!("bimetal record {file} {volume} --out requests.trace --seconds 60"),
            ),
            (
                "Check the configuration, without changing anything",
                format!("bimetal check {file}"),
            ),
            (
                "Write a report for somebody who helps, without secrets",
                format!("bimetal report {file} > report.txt"),
            ),
            (
                "Stop it cleanly: clients are disconnected",
                format!("kill -TERM {}", subject.pid),
            ),
        ],
    ));
    groups
}

fn of_mirror(
    groups: &mut Vec<Value>,
    file: &str,
    name: &str,
    mirror: &Figures,
    spare: Option<&str>,
) {
    let volume = shell_word(name);
    let new = spare.map_or_else(|| NEW.to_owned(), shell_word);
    let scrub = match mirror.word("scrub") {
        Some("running") => (
            "Cancel the scrub that runs",
            format!("bimetal scrub {file} {volume} --cancel"),
        ),
        _ => (
            "Scrub: read every copy of all data, and repair corrupt copies",
            format!("bimetal scrub {file} {volume} --wait"),
        ),
    };
    groups.push(group(
        &format!("Volume {name}"),
        &[
            scrub,
            (
                "Show the last scrub",
                format!("bimetal scrub {file} {volume} --show"),
            ),
            (
                "Show the rates of rebuilds",
                format!("bimetal rebuild {file} {volume}"),
            ),
            (
                "Rebuild faster, at the cost of clients",
                format!("bimetal rebuild {file} {volume} --floor 100MiB/s --ceiling none"),
            ),
            (
                "Rebuild slower, for the sake of clients",
                format!("bimetal rebuild {file} {volume} --floor 0B/s --ceiling 10MiB/s"),
            ),
            (
                "Add a side",
                format!("bimetal side add {file} {volume} {new}"),
            ),
            (
                "Grow to what all sides have room for",
                format!("bimetal grow {file} {volume}"),
            ),
        ],
    ));
    for (name, figures) in mirror.parts() {
        let side = shell_word(name);
        let is_logged = figures.number("segments") > 0.0;
        let other = if is_logged { "home" } else { "log" };
        groups.push(group(
            &format!("Side {name}"),
            &[
                (
                    "Replace it",
                    format!("bimetal side replace {file} {volume} {side} {new}"),
                ),
                (
                    "Say what it would take to convert it to the other layout",
                    format!("bimetal side convert {file} {volume} {side} --layout {other}"),
                ),
                (
                    "Remove it permanently: one copy less",
                    format!("bimetal side remove {file} {volume} {side}"),
                ),
            ],
        ));
    }
}

fn of_cache(file: &str, name: &str, cache: &Figures) -> Value {
    let device = shell_word(name);
    let mut commands = vec![(
        "Show its content and counters",
        format!("bimetal cache {file} {device}"),
    )];
    if cache.word("health").is_some_and(|word| word != "healthy") {
        commands.push((
            "Accept a loss that it has reported",
            format!("bimetal cache {file} {device} --accept-loss"),
        ));
    }
    group(&format!("Cache {name}"), &commands)
}

/// Returns the command that takes away a block device or a file of this machine.
fn of_attached(path: &str, attached: &Value) -> Option<Value> {
    let device = attached["device"].as_str()?;
    let command = match path.starts_with("/dev/ublkb") {
        true => format!("bimetal detach {}", shell_word(path)),
        false => {
            let folder = Path::new(path).parent()?.display().to_string();
            format!("bimetal unmount {}", shell_word(&folder))
        }
    };
    let title = format!("Local {device}");
    Some(group(
        &title,
        &[("Take it away from this machine", command)],
    ))
}

fn group(title: &str, commands: &[(&str, String)]) -> Value {
    let shown = commands.iter().map(|(does, command)| {
        let words: Vec<&str> = command.split(' ').collect();
        let needs_device = words.contains(&NEW);
        json!({
            "does": does,
            "command": command,
            "note": needs_device.then_some("NEW: the name of a device that you add to the \
                configuration first, as a section [device.NEW]"),
        })
    });
    json!({ "title": title, "commands": shown.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn commands(status: &Value, spare: Option<&str>) -> Vec<String> {
        let groups = groups(&Subject {
            file: Path::new("/etc/bimetal/vol.toml"),
            status,
            volume: "vol",
            spare,
            pid: 4711,
        });
        let commands = groups
            .iter()
            .flat_map(|group| group["commands"].as_array().cloned().unwrap_or_default());
        commands
            .map(|of| of["command"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    fn status() -> Value {
        json!({
            "attached": {
                "/dev/ublkb0": { "device": "top" },
                "/mnt/vol/disk": { "device": "top" },
            },
            "devices": {
                "slow": { "type": "file" },
                "vol": {
                    "type": "mirror",
                    "statistics": { "scrub": "running" },
                    "parts": { "fast": { "segments": 12.0 }, "slow": {} },
                },
                "top": { "type": "cache", "statistics": { "health": "lost" } },
            },
        })
    }

    /// The command line of the program is the specification.
    #[test]
    fn the_program_takes_each_command() {
        for spare in [None, Some("spare")] {
            let mut taken = 0;
            for command in commands(&status(), spare) {
                let end = command.find(" > ").unwrap_or(command.len());
                let words: Vec<&str> = command[..end].split(' ').collect();
                if words[0] == "kill" {
                    assert_eq!(words, ["kill", "-TERM", "4711"]);
                    continue;
                }
                let parsed = crate::Command::try_parse_from(&words);
                assert!(parsed.is_ok(), "{command}");
                taken += 1;
            }
            assert!(taken > 15, "{taken}");
        }
    }

    #[test]
    fn commands_have_the_true_names() {
        let all = commands(&status(), Some("spare"));
        for command in [
            "bimetal scrub /etc/bimetal/vol.toml vol --cancel",
            "bimetal side replace /etc/bimetal/vol.toml vol fast spare",
            "bimetal side convert /etc/bimetal/vol.toml vol fast --layout home",
            "bimetal side convert /etc/bimetal/vol.toml vol slow --layout log",
            "bimetal cache /etc/bimetal/vol.toml top --accept-loss",
            "bimetal detach /dev/ublkb0",
            "bimetal unmount /mnt/vol",
        ] {
            assert!(
                all.iter().any(|found| found == command),
                "{command}: {all:#?}"
            );
        }
    }
}
