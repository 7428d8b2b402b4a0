//! Completions of a command line, in the format of cobra that kubectl reads from `kubectl_complete-ipu`: a
//! candidate a line, with its description after a tab, and the directive at the end.

use std::time::Duration;

use clap::builder::ValueHint;
use clap::{Arg, Command, CommandFactory as _, FromArgMatches as _};
use kube::ResourceExt;
use kube::api::ListParams;

use crate::cli::{Cli, Global};
use crate::context::Context;

/// Time for the list of the jobs, including the credential plugin of the kubeconfig: a person waits for it.
const JOBS_TIMEOUT: Duration = Duration::from_secs(3);
/// Directive of cobra by which the shell completes file names.
const FILES: &str = ":0\n";
/// Directive of cobra by which the shell completes no file names.
const NO_FILES: &str = ":4\n";

/// Candidates for the last word of a command line.
#[derive(Debug, PartialEq, Eq)]
enum Candidates {
    /// Words, each with its description.
    Words(Vec<(String, String)>),
    /// Names of files.
    Files,
    /// Names of IPUJobs.
    Jobs,
}

/// Returns the completions of the last word.
pub(crate) async fn complete(words: &[String]) -> String {
    let current = words.last().map_or("", String::as_str);
    let candidates = match candidates(words) {
        Candidates::Files => return FILES.to_owned(),
        Candidates::Words(words) => words,
        Candidates::Jobs => {
            // A task of its own, because a credential plugin blocks the thread that waits for it.
            let listing = tokio::spawn(jobs(words.to_vec()));
            let names = tokio::time::timeout(JOBS_TIMEOUT, listing).await;
            let names = names.ok().and_then(Result::ok).flatten().unwrap_or_default();
            names.into_iter().map(|name| (name, String::new())).collect()
        }
    };
    let matching = candidates
        .into_iter()
        .filter(|(word, _)| word.starts_with(current));
    let lines = matching.map(|(word, help)| match help.as_str() {
        "" => format!("{word}\n"),
        help => format!("{word}\t{help}\n"),
    });
    lines.collect::<String>() + NO_FILES
}

/// Returns the names of the jobs in the namespace of the command line; none without access.
async fn jobs(words: Vec<String>) -> Option<Vec<String>> {
    let line = std::iter::once("kubectl-ipu").chain(words.iter().map(String::as_str));
    let matches = Cli::command()
        .ignore_errors(true)
        .try_get_matches_from(line)
        .ok()?;
    let context = Context::open(&Global::from_arg_matches(&matches).ok()?)
        .await
        .ok()?;
    let jobs = context.jobs().list_metadata(&ListParams::default()).await.ok()?;
    Some(jobs.iter().map(ResourceExt::name_any).collect())
}

fn candidates(words: &[String]) -> Candidates {
    let mut root = Cli::command();
    root.build();
    let mut command = &root;
    let (current, before) = words
        .split_last()
        .map_or(("", words), |(last, before)| (last, before));
    let mut positionals = 0;
    let mut before = before.iter();
    while let Some(word) = before.next() {
        if word == "--" {
            // The command line of `exec` belongs to another program.
            return Candidates::Files;
        }
        if word.starts_with('-') && word != "-" {
            let option = option(command, word).filter(|_| !word.contains('='));
            if let (Some(option), None) = (option, before.clone().next()) {
                return values(option, "");
            }
            if option.is_some() {
                before.next();
            }
        } else if let Some(subcommand) = command.find_subcommand(word) {
            command = subcommand;
        } else {
            positionals += 1;
        }
    }
    if let Some((name, _)) = current.split_once('=').filter(|_| current.starts_with("--")) {
        return option(command, name).map_or(Candidates::Words(Vec::new()), |option| {
            values(option, &format!("{name}="))
        });
    }
    if current.starts_with('-') {
        return Candidates::Words(flags(command));
    }
    if command.has_subcommands() {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let words = shown.map(|command| (command.get_name().to_owned(), first_line(command.get_about())));
        return Candidates::Words(words.collect());
    }
    let next = command.get_positionals().nth(positionals);
    next.map_or(Candidates::Words(Vec::new()), |argument| values(argument, ""))
}

/// Returns the option that a word names, if the option has a value and the word is not followed by it.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut options = command
        .get_arguments()
        .filter(|option| option.get_action().takes_values());
    match word.strip_prefix("--") {
        Some(name) => options.find(|option| option.get_long() == Some(name)),
        None => {
            options.find(|option| option.get_short().is_some() && option.get_short() == word.chars().last())
        }
    }
}

/// Returns the values of an option or of a positional argument, each after this prefix.
fn values(argument: &Arg, prefix: &str) -> Candidates {
    if argument.get_id() == "job" {
        return Candidates::Jobs;
    }
    if argument.get_value_hint() == ValueHint::AnyPath {
        return Candidates::Files;
    }
    let values = argument.get_possible_values();
    let shown = values.iter().filter(|value| !value.is_hide_set());
    let words = shown.map(|value| {
        (
            format!("{prefix}{}", value.get_name()),
            first_line(value.get_help()),
        )
    });
    Candidates::Words(words.collect())
}

/// Returns the long options of a command.
fn flags(command: &Command) -> Vec<(String, String)> {
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let flag = |argument: &Arg| {
        Some((
            format!("--{}", argument.get_long()?),
            first_line(argument.get_help()),
        ))
    };
    shown.filter_map(flag).collect()
}

/// Returns the first line of a help text: a line has one candidate.
fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the completions of the last word of this line, without their descriptions.
    fn completed(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let current = words.last().unwrap();
        match candidates(&words) {
            Candidates::Files => "files".into(),
            Candidates::Jobs => "jobs".into(),
            Candidates::Words(words) => {
                let words = words.into_iter().map(|(word, _)| word);
                words
                    .filter(|word| word.starts_with(current))
                    .collect::<Vec<_>>()
                    .join(" ")
            }
        }
    }

    #[test]
    fn the_last_word_is_a_command_an_option_a_value_a_job_or_a_file() {
        for (line, expected) in [
            ("s", "submit scale stats"),
            ("-n team s", "submit scale stats"),
            ("uncordon --i", "--id"),
            ("get --kubec", "--kubeconfig"),
            ("get -o ", "table json yaml"),
            ("get --output j", "json"),
            ("get --output=y", "--output=yaml"),
            ("completions z", "zsh"),
            ("why ", "jobs"),
            ("-n team logs -f t", "jobs"),
            ("logs --worker 1 ", "jobs"),
            ("why training ", ""),
            ("submit ", "files"),
            ("--kubeconfig ", "files"),
            ("exec -it training -- ", "files"),
            ("cordon ", ""),
            ("__", ""),
        ] {
            assert_eq!(completed(line), expected, "{line:?}");
        }
    }
}
