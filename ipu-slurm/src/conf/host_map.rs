//! The host map of option 1, usually `ipum.allocs`: which IPU-Machines belong to a host.
//!
//! The file is shared with scripts that split lines at `:` and `,` only, where white space becomes part of a
//! machine's name (Slurm guide §8.6). Therefore white space is refused, and a comment has a line of its own.

use std::collections::BTreeMap;

use ipu_core::AgentId;
use ipu_core::job::ErrorList;

use super::error::{ConfError, absent};
use super::span::{Span, lines};
use super::values::is_name;

/// The hosts of a cluster with their IPU-Machines, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMap {
    hosts: Vec<(String, Vec<AgentId>)>,
}

impl HostMap {
    /// Parses lines of the form `host:machine,machine` and comment lines.
    ///
    /// # Errors
    ///
    /// All errors, in the order of their lines; never empty.
    ///
    /// ```
    /// use ipu_core::AgentId;
    /// use ipu_slurm::conf::HostMap;
    ///
    /// let map = HostMap::parse("ipum.allocs", "# Rack 1.\nhost-1:ipum1,ipum2\nhost-2:ipum3\n")?;
    /// assert_eq!(map.machines("host-1").map(<[AgentId]>::len), Some(2));
    /// assert_eq!(map.host_of(&AgentId::new("ipum3")?), Some("host-2"));
    ///
    /// let errors = HostMap::parse("ipum.allocs", "host-1:ipum1\nhost-2:ipum1\n").unwrap_err();
    /// assert_eq!(
    ///     errors[0].to_string(),
    ///     "ipum.allocs:2:8: machine = ipum1: is on line 1 already; remove one of the two",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(file: &str, text: &str) -> Result<Self, ErrorList<ConfError>> {
        let mut parser = Parser::default();
        for line in lines(file, text, &mut parser.errors) {
            parser.line(line);
        }
        let Parser {
            hosts, mut errors, ..
        } = parser;
        if hosts.is_empty() && errors.is_empty() {
            errors.push(absent(
                file,
                "host",
                "a host map has a host",
                "add host:machine,machine",
            ));
        }
        errors.sort_by_key(|error| (error.line, error.column));
        if errors.is_empty() {
            Ok(Self { hosts })
        } else {
            Err(errors.into())
        }
    }

    /// Returns the hosts with their machines, in the order of the file.
    pub fn hosts(&self) -> impl Iterator<Item = (&str, &[AgentId])> {
        self.hosts
            .iter()
            .map(|(host, machines)| (host.as_str(), machines.as_slice()))
    }

    /// Returns the machines of a host; at least one if the host is known.
    #[must_use]
    pub fn machines(&self, host: &str) -> Option<&[AgentId]> {
        self.hosts()
            .find(|(name, _)| *name == host)
            .map(|(_, machines)| machines)
    }

    /// Returns the host of a machine.
    #[must_use]
    pub fn host_of(&self, machine: &AgentId) -> Option<&str> {
        self.hosts()
            .find(|(_, machines)| machines.contains(machine))
            .map(|(host, _)| host)
    }
}

/// The lines so far.
#[derive(Default)]
struct Parser<'a> {
    hosts: Vec<(String, Vec<AgentId>)>,
    /// The first line of each host.
    host_lines: BTreeMap<&'a str, usize>,
    /// The first line of each machine.
    machine_lines: BTreeMap<&'a str, usize>,
    errors: Vec<ConfError>,
}

impl<'a> Parser<'a> {
    fn line(&mut self, line: Span<'a>) {
        if line.text().is_empty() || line.text().starts_with('#') {
            return;
        }
        let content = self.without_comment(line);
        self.check_white_space(content);
        if content.trim().text().is_empty() {
            return;
        }
        let Some((host, list)) = content.split_once(':') else {
            let fix = "write host:machine,machine";
            self.errors
                .push(content.error("host", "has no ':' and no machines", fix));
            return;
        };
        let host = host.trim();
        let valid_host = self.name("host", host);
        if let Some(host_name) = valid_host {
            self.check_first("host", host, |parser| &mut parser.host_lines);
            let machines = self.machines(host_name, list);
            self.hosts.push((host_name.to_owned(), machines));
        } else {
            self.machines(host.text(), list);
        }
    }

    /// Removes a comment behind other text, which is an error.
    fn without_comment(&mut self, line: Span<'a>) -> Span<'a> {
        let Some((content, _)) = line.split_once('#') else {
            return line;
        };
        let offset = content.text().len();
        let rule = "a comment has a line of its own, with # at its beginning";
        self.errors
            .push(line.error_at(offset, "line", rule, "move the comment to the line above"));
        content.until(content.text().trim_end().len())
    }

    /// Reports each run of white space once.
    fn check_white_space(&mut self, content: Span<'_>) {
        let mut inside = false;
        for (offset, c) in content.text().char_indices() {
            if c.is_whitespace() && !inside {
                let fix = match c {
                    '\r' => "save the file with Unix line ends",
                    _ => "remove it",
                };
                self.errors
                    .push(content.error_at(offset, "line", "has white space", fix));
            }
            inside = c.is_whitespace();
        }
    }

    fn machines(&mut self, host: &str, list: Span<'a>) -> Vec<AgentId> {
        let mut machines = Vec::new();
        if list.trim().text().is_empty() {
            let fix = "add its machines, or remove the line";
            self.errors
                .push(list.error(host, "a host has at least one machine", fix));
            return machines;
        }
        for machine in list.split(|c| c == ',') {
            let machine = machine.trim();
            if self.name("machine", machine).is_some() {
                self.check_first("machine", machine, |parser| &mut parser.machine_lines);
                machines.extend(AgentId::new(machine.text()));
            }
        }
        machines
    }

    /// Returns the name in `span`, or reports what is wrong with it.
    fn name(&mut self, field: &str, span: Span<'a>) -> Option<&'a str> {
        let text = span.text();
        if is_name(text) {
            return Some(text);
        }
        // White space within a name is reported already.
        if text.is_empty() || !text.contains(char::is_whitespace) {
            let (rule, fix) = match text {
                "" => ("a name is empty", "remove the extra ':' or ',', or add the name"),
                _ if text.contains('[') => ("a line has one host", "write a line for each host of the list"),
                _ => (
                    "a name has letters, digits, '-', '_' and '.' only, a letter or digit first",
                    "write host:machine,machine",
                ),
            };
            self.errors.push(span.error(field, rule, fix));
        }
        None
    }

    /// Reports a name that occurred before.
    fn check_first(
        &mut self,
        field: &str,
        span: Span<'a>,
        lines: impl Fn(&mut Self) -> &mut BTreeMap<&'a str, usize>,
    ) {
        let known = lines(self);
        match known.get(span.text()) {
            Some(first) => {
                let rule = format!("is on line {first} already");
                self.errors.push(span.error(field, rule, "remove one of the two"));
            }
            None => drop(known.insert(span.text(), span.line_number())),
        }
    }
}
