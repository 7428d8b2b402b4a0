//! Commands with placeholders, which start without a shell.

use core::fmt;

use ipu_core::{AgentId, AllocationId};

use super::error::ConfError;
use super::span::Span;
use super::values::absolute_path;

/// The argument vector of a program, with the placeholders `{allocation}` and `{agents}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandTemplate {
    argv: Vec<String>,
}

/// The placeholders that a command must contain.
#[derive(Clone, Copy)]
pub(super) enum RequiredPlaceholders {
    Allocation,
    AllocationAndAgents,
}

const ALLOCATION_PLACEHOLDER: &str = "{allocation}";
const AGENTS_PLACEHOLDER: &str = "{agents}";

impl CommandTemplate {
    /// Returns the argument vector for an allocation of agents. `{agents}` is the list with commas. A value
    /// is always part of one argument, and placeholders in it have no meaning.
    ///
    /// ```
    /// use ipu_core::{AgentId, AllocationId};
    /// use ipu_slurm::conf::ClusterConf;
    ///
    /// let text = "AllocationCreate=/usr/bin/vipu-admin create allocation {allocation} --agents={agents}\n\
    ///             AllocationRemove=/usr/bin/vipu-admin remove allocation {allocation}\n";
    /// let conf = ClusterConf::parse("vipu.conf", text).unwrap();
    /// let commands = conf.allocation_commands().expect("the file has both commands");
    /// let agents = [AgentId::new("ipum1")?, AgentId::new("ipum2")?];
    /// let argv = commands.create.argv(&AllocationId::new("c7")?, &agents);
    /// assert_eq!(argv[1..], ["create", "allocation", "c7", "--agents=ipum1,ipum2"]);
    /// # Ok::<(), ipu_core::NameError>(())
    /// ```
    #[must_use]
    pub fn argv(&self, allocation: &AllocationId, agents: &[AgentId]) -> Vec<String> {
        let agents: Vec<&str> = agents.iter().map(AgentId::as_str).collect();
        let agents = agents.join(",");
        let expand = |argument: &String| {
            let mut expanded = String::new();
            let mut rest = argument.as_str();
            while let Some(offset) = rest.find('{') {
                expanded.push_str(&rest[..offset]);
                rest = &rest[offset..];
                if let Some(after) = rest.strip_prefix(ALLOCATION_PLACEHOLDER) {
                    expanded.push_str(allocation.as_str());
                    rest = after;
                } else if let Some(after) = rest.strip_prefix(AGENTS_PLACEHOLDER) {
                    expanded.push_str(&agents);
                    rest = after;
                } else {
                    // The parser admits no other brace.
                    break;
                }
            }
            expanded.push_str(rest);
            expanded
        };
        self.argv.iter().map(expand).collect()
    }
}

impl fmt::Display for CommandTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.argv.join(" "))
    }
}

/// Returns a parser of commands with the placeholders that are required.
pub(super) fn parse(
    required: RequiredPlaceholders,
) -> impl FnOnce(&str, Span<'_>) -> Result<CommandTemplate, ConfError> {
    move |field, value| {
        let is_shell = |c: char| "`$|&;<>()*?~!".contains(c);
        if let Some(offset) = value.text().find(is_shell) {
            return Err(value.error_at(
                offset,
                field,
                "no shell runs the command",
                "call a script that does this",
            ));
        }
        let words = value.words();
        if let Some(program) = words.first() {
            absolute_path(field, *program)?;
            if program.text().contains(['{', '}']) {
                return Err(program.error(field, "a program has no placeholder", "write its absolute path"));
            }
        }
        check_braces(field, value)?;
        let needs: &[&str] = match required {
            RequiredPlaceholders::Allocation => &[ALLOCATION_PLACEHOLDER],
            RequiredPlaceholders::AllocationAndAgents => &[ALLOCATION_PLACEHOLDER, AGENTS_PLACEHOLDER],
        };
        if let Some(absent) = needs.iter().find(|name| !value.text().contains(**name)) {
            return Err(value.error(field, format!("must contain {absent}"), "add it as an argument"));
        }
        Ok(CommandTemplate {
            argv: words.iter().map(|word| word.text().to_owned()).collect(),
        })
    }
}

/// Checks that every brace belongs to a known placeholder.
fn check_braces(field: &str, value: Span<'_>) -> Result<(), ConfError> {
    let text = value.text();
    let mut offset = 0;
    while let Some(found) = text[offset..].find(['{', '}']) {
        offset += found;
        let Some(name) = [ALLOCATION_PLACEHOLDER, AGENTS_PLACEHOLDER]
            .into_iter()
            .find(|name| text[offset..].starts_with(name))
        else {
            return Err(value.error_at(
                offset,
                field,
                "is not a placeholder",
                "write {allocation} or {agents}",
            ));
        };
        offset += name.len();
    }
    Ok(())
}
