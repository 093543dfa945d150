//! Verbs that `bimetal` had once: each is refused with the command that does the same now.

use std::process::ExitCode;

use bimetal_console::stderr::say;

/// A verb that has moved, with all words behind it.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Moved to `bimetal-lab`.
    #[command(hide = true, disable_help_flag = true)]
    Lab(Words),
    /// Moved to `bimetal-lab`.
    #[command(hide = true, disable_help_flag = true)]
    Sim(Words),
    /// Moved to `bimetal-lab trace` and `bimetal record`.
    #[command(hide = true, disable_help_flag = true)]
    Trace(Words),
}

/// The words behind a verb, which are not read.
#[derive(clap::Args)]
pub(crate) struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Subcommands of `bimetal sim` and the commands that they are now.
const OF_SIM: [(&str, &str); 8] = [
    ("run", "bimetal-lab tester run"),
    ("swarm", "bimetal-lab tester swarm"),
    ("every", "bimetal-lab tester every"),
    ("index-run", "bimetal-lab tester index-run"),
    ("index-swarm", "bimetal-lab tester index-swarm"),
    ("cache", "bimetal-lab cache"),
    ("index", "bimetal-lab index"),
    ("hetero", "bimetal-lab mirror"),
];
/// Subcommands of `bimetal lab`, which are verbs of `bimetal-lab` under the same name.
const OF_LAB: [&str; 5] = ["run", "plan", "restore", "report", "compare"];

/// Says which command does what the verb did, and returns the exit status of a wrong command line.
pub(crate) fn refuse(verb: &Verb) -> ExitCode {
    let (name, words) = match verb {
        Verb::Lab(words) => ("lab", words),
        Verb::Sim(words) => ("sim", words),
        Verb::Trace(words) => ("trace", words),
    };
    let sub = words.words.first().map_or("", String::as_str);
    say(format_args!("bimetal: {}", line(name, sub)));
    ExitCode::from(2)
}

/// Returns the message about the old verb `name` with the subcommand `sub`.
fn line(name: &str, sub: &str) -> String {
    let now = match name {
        "lab" => OF_LAB.contains(&sub).then(|| format!("bimetal-lab {sub}")),
        "sim" => (OF_SIM.iter().find(|(old, _)| *old == sub)).map(|(_, new)| (*new).to_owned()),
        _ if sub == "record" => Some("bimetal record".to_owned()),
        _ => ["convert", "summary", "stack-distance"]
            .contains(&sub)
            .then(|| format!("bimetal-lab trace {sub}")),
    };
    match now {
        Some(now) => format!("`bimetal {name} {sub}` is `{now}` now"),
        None => format!(
            "`bimetal {name}` has moved to the program `bimetal-lab`; see `bimetal-lab --help`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_verb_names_the_new_one() {
        let expected = "`bimetal sim hetero` is `bimetal-lab mirror` now";
        assert_eq!(line("sim", "hetero"), expected);
        assert_eq!(
            line("lab", "run"),
            "`bimetal lab run` is `bimetal-lab run` now"
        );
        let expected = "`bimetal trace record` is `bimetal record` now";
        assert_eq!(line("trace", "record"), expected);
        assert!(line("sim", "--help").contains("`bimetal-lab --help`"));
    }
}
