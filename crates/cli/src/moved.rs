//! Verbs that `bimetal` had in earlier versions. Each is refused with a message that names the
//! command that replaces it.

use std::process::ExitCode;

use bimetal_console::stderr::say;

/// A verb that has moved, with the arguments that follow it.
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

/// The arguments that follow a verb. Only the first is used, as the name of a subcommand.
#[derive(clap::Args)]
pub(crate) struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Former subcommands of `bimetal sim`, and the commands that replace them.
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
/// Former subcommands of `bimetal lab`, which are now verbs of `bimetal-lab` with the same names.
const OF_LAB: [&str; 5] = ["run", "plan", "restore", "report", "compare"];

/// Prints which command replaces the verb, and returns the exit status for an invalid command line.
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

/// Returns the message that refuses the former verb `name` with the subcommand `sub`, and names the
/// new command or program.
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
        Some(now) => format!("`bimetal {name} {sub}` is now `{now}`"),
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
        let expected = "`bimetal sim hetero` is now `bimetal-lab mirror`";
        assert_eq!(line("sim", "hetero"), expected);
        assert_eq!(
            line("lab", "run"),
            "`bimetal lab run` is now `bimetal-lab run`"
        );
        let expected = "`bimetal trace record` is now `bimetal record`";
        assert_eq!(line("trace", "record"), expected);
        assert!(line("sim", "--help").contains("`bimetal-lab --help`"));
    }
}
