//! The V-IPU resources on the node lines of slurm.conf.
//!
//! `Gres=vipu:<size>:<count>` are partitions of option 2 (seed 004 §8.3), and
//! `Gres=vipu:<model>:no_consume:<size>` is a model of option 4 (§8.5.3). All other lines, keys and resources
//! are left to Slurm's own parser.

use core::fmt;
use std::collections::BTreeMap;

use ipu_core::{IpuCount, IpuCountError};

use super::error::ConfError;
use super::host_list::{self, MAX_HOSTS};
use super::similar::closest;
use super::span::{Span, lines};
use crate::{Counting, Gres};

/// Maximum number of partitions of a size on a node: as many as there are IPUs in any documented system.
const MAX_COUNT: u64 = 65_536;
const FIELD: &str = "Gres";
const FIX: &str = "write vipu:<size>:<count>, or vipu:<model>:no_consume:<size>";

/// The nodes with V-IPU resources, in the order of the file.
///
/// Displays as one line for each node, which parse to the same list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGresList {
    nodes: Vec<NodeGres>,
}

/// The V-IPU resources of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGres {
    name: String,
    gres: Vec<VipuGres>,
}

/// A V-IPU resource of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipuGres {
    /// `vipu:<size>:<count>`: preconfigured partitions (option 2).
    Partitions {
        /// The IPUs of each partition.
        size: IpuCount,
        /// The number of partitions, at least 1.
        count: u32,
    },
    /// `vipu:<model>:no_consume:<size>`: partitions that are created for jobs (option 4).
    Model {
        /// The name of the model.
        model: String,
        /// The IPUs of the largest partition.
        max_partition: IpuCount,
    },
}

impl NodeGresList {
    /// Parses the node lines of slurm.conf or of a file that it includes. `models` are the names of the
    /// models that have a configuration file.
    ///
    /// # Errors
    ///
    /// All errors in V-IPU resources, in the order of their lines; never empty.
    pub fn parse(file: &str, text: &str, models: &[&str]) -> Result<Self, Vec<ConfError>> {
        let mut errors = Vec::new();
        let mut nodes = Vec::new();
        let mut first_lines = BTreeMap::new();
        let mut physical = lines(file, text, &mut errors).into_iter();
        while let Some(words) = next_words(&mut physical) {
            let Some((names, gres)) = parse_line(&words, models, &mut errors) else {
                continue;
            };
            let names_of_line = host_list::expand("NodeName", names);
            for name in names_of_line
                .map_err(|error| errors.push(error))
                .unwrap_or_default()
            {
                if let Some(first) = first_lines.get(&name) {
                    let rule = format!("{name} is on line {first} already");
                    errors.push(names.error("NodeName", rule, "remove it from one of the lines"));
                    break;
                }
                first_lines.insert(name.clone(), names.line_number());
                nodes.push(NodeGres {
                    name,
                    gres: gres.clone(),
                });
            }
            if nodes.len() > MAX_HOSTS {
                let rule = format!("a file has at most {MAX_HOSTS} nodes");
                errors.push(names.error("NodeName", rule, "remove nodes"));
                break;
            }
        }
        errors.sort_by_key(|error| (error.line, error.column));
        if errors.is_empty() {
            Ok(Self { nodes })
        } else {
            Err(errors)
        }
    }

    /// Returns the nodes in the order of the file.
    #[must_use]
    pub fn nodes(&self) -> &[NodeGres] {
        &self.nodes
    }

    /// Returns the resources of a node; none if it has no V-IPU resources.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeGres> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

impl NodeGres {
    /// Returns the name of the node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the V-IPU resources, at least one, each size and each model once.
    #[must_use]
    pub fn gres(&self) -> &[VipuGres] {
        &self.gres
    }
}

impl fmt::Display for VipuGres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partitions { size, count } => write!(f, "vipu:{size}:{count}"),
            Self::Model { model, max_partition } => write!(f, "vipu:{model}:no_consume:{max_partition}"),
        }
    }
}

impl fmt::Display for NodeGresList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for NodeGres { name, gres } in &self.nodes {
            let gres: Vec<_> = gres.iter().map(ToString::to_string).collect();
            writeln!(f, "NodeName={name} Gres={}", gres.join(","))?;
        }
        Ok(())
    }
}

/// Returns the words of the next line; a line that ends with a backslash continues on the next one.
fn next_words<'a>(lines: &mut impl Iterator<Item = Span<'a>>) -> Option<Vec<Span<'a>>> {
    let mut words = lines.next()?.without_comment().words();
    while let Some(end) = words.pop_if(|word| word.text().ends_with('\\')) {
        let end = end.until(end.text().len() - 1);
        words.extend(Some(end).filter(|word| !word.text().is_empty()));
        match lines.next() {
            Some(line) => words.extend(line.without_comment().words()),
            None => break,
        }
    }
    Some(words)
}

/// Parses a line; none if it is no node line, or has no valid V-IPU resource.
fn parse_line<'a>(
    words: &[Span<'a>],
    models: &[&str],
    errors: &mut Vec<ConfError>,
) -> Option<(Span<'a>, Vec<VipuGres>)> {
    let names = value_of(words.first()?, "NodeName", errors)?;
    let mut values = words[1..].iter().filter_map(|word| value_of(word, FIELD, errors));
    let (list, second) = (values.next()?, values.next());
    drop(values);
    if let Some(second) = second {
        errors.push(second.error(FIELD, "a node has one Gres", "write one list with commas"));
    }
    let mut gres: Vec<VipuGres> = Vec::new();
    for item in list.split(|c| c == ',') {
        match parse_item(item, models) {
            Ok(None) => {}
            Ok(Some(new)) if gres.iter().any(|known| is_same_kind(known, &new)) => {
                errors.push(item.error(FIELD, "the size or model is given twice", "remove one of the two"));
            }
            Ok(Some(new)) => gres.push(new),
            Err(error) => errors.push(error),
        }
    }
    if names.text().eq_ignore_ascii_case("DEFAULT") && !gres.is_empty() {
        let rule = "V-IPU resources have no default";
        errors.push(names.error("NodeName", rule, "write Gres on the line of each node"));
        return None;
    }
    (!gres.is_empty()).then_some((names, gres))
}

/// Returns the value of the word `key=value`. As in Slurm, keys ignore case.
fn value_of<'a>(word: &Span<'a>, key: &str, errors: &mut Vec<ConfError>) -> Option<Span<'a>> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (*word, None),
    };
    if !name.text().eq_ignore_ascii_case(key) {
        return None;
    }
    if value.is_none_or(|value| value.text().is_empty()) {
        let fix = format!("write {key}=value without white space");
        errors.push(word.error(key, "has no value", fix));
        return None;
    }
    value
}

/// Parses one resource; none if it is not a V-IPU resource.
fn parse_item(item: Span<'_>, models: &[&str]) -> Result<Option<VipuGres>, ConfError> {
    let name = item.text().split(':').next().unwrap_or_default();
    if name.is_empty() {
        return Err(item.error(FIELD, "a resource has no name", FIX));
    }
    if name != "vipu" {
        return if name.eq_ignore_ascii_case("vipu") {
            Err(item.error(FIELD, "the name is in lower case", FIX))
        } else {
            Ok(None)
        };
    }
    let gres: Gres = item.text().parse().map_err(|error: crate::GresError| {
        let before = item.text().char_indices().nth(error.position - 1);
        let at = before.map_or(item.text().len(), |(at, _)| at);
        item.error_at(at, FIELD, error.rule, error.fix)
    })?;
    if gres.indices().is_some() || gres.sockets().is_some() || item.text().contains('(') {
        return Err(item.error(FIELD, "a node's resource has no parentheses", FIX));
    }
    let Some(kind) = gres.kind() else {
        return Err(item.error(FIELD, "the size of the partitions, or the model, is absent", FIX));
    };
    match gres.counting() {
        Counting::Consumed => parse_partitions(item, kind, &gres),
        Counting::NotConsumed => parse_model(item, kind, &gres, models),
    }
    .map(Some)
}

fn parse_partitions(item: Span<'_>, kind: &str, gres: &Gres) -> Result<VipuGres, ConfError> {
    let size = match kind.parse::<IpuCount>() {
        Ok(size) if size.to_string() == kind => size,
        Ok(_) => return Err(item.error(FIELD, "a size has no sign and no leading zeros", FIX)),
        Err(IpuCountError::NotAPowerOfTwo { next, .. }) => {
            let rule = format!("a size is a power of two from 1 to {}", IpuCount::MAX);
            return Err(item.error(FIELD, rule, format!("use {next}, for example")));
        }
        Err(_) => return Err(item.error(FIELD, "a size is a number, and a model has no_consume", FIX)),
    };
    let count = u32::try_from(gres.count()).ok();
    match count.filter(|count| (1..=MAX_COUNT).contains(&u64::from(*count))) {
        Some(count) => Ok(VipuGres::Partitions { size, count }),
        None => Err(item.error(FIELD, format!("a count is from 1 to {MAX_COUNT}"), FIX)),
    }
}

fn parse_model(item: Span<'_>, model: &str, gres: &Gres, models: &[&str]) -> Result<VipuGres, ConfError> {
    if !models.contains(&model) {
        let fix = match closest(model, models.iter().copied()) {
            Some(known) => format!("did you mean {known}?"),
            None => "create the file, or link it to vipu.conf".to_owned(),
        };
        let shown = super::span::shorten(model);
        return Err(item.error(FIELD, format!("the model {shown} has no file {shown}.conf"), fix));
    }
    if item.text().ends_with("no_consume") {
        return Err(item.error(FIELD, "the size of the largest partition is absent", FIX));
    }
    match gres.ipus() {
        Ok(max_partition) => Ok(VipuGres::Model {
            model: model.to_owned(),
            max_partition,
        }),
        Err(_) => {
            let rule = format!(
                "the largest partition is a power of two from 1 to {}",
                IpuCount::MAX
            );
            Err(item.error(FIELD, rule, FIX))
        }
    }
}

fn is_same_kind(left: &VipuGres, right: &VipuGres) -> bool {
    match (left, right) {
        (VipuGres::Partitions { size: left, .. }, VipuGres::Partitions { size: right, .. }) => left == right,
        (VipuGres::Model { model: left, .. }, VipuGres::Model { model: right, .. }) => left == right,
        (VipuGres::Partitions { .. }, VipuGres::Model { .. })
        | (VipuGres::Model { .. }, VipuGres::Partitions { .. }) => false,
    }
}
