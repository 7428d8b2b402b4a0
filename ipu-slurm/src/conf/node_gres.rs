//! The V-IPU resources of the nodes in slurm.conf.
//!
//! `Gres=vipu:<size>:<count>` are static partitions, and `Gres=vipu:<model>:no_consume:<size>` is a model of
//! Graphcore's plugin. All other lines, keys and resources are left to Slurm's own parser.

use core::fmt;
use std::collections::BTreeMap;

use ipu_core::{IpuCount, IpuCountError};

use super::error::ConfError;
use super::host_list::{self, MAX_HOSTS};
use super::similar::closest;
use super::slurm_conf::{SlurmConf, SlurmLine};
use super::span::Span;
use crate::{Counting, Gres};

/// Maximum number of partitions of a size on a node: as many as there are IPUs in any documented system.
const MAX_COUNT: u64 = 65_536;
const FIELD: &str = "Gres";
const FIX: &str = "write vipu:<size>:<count>, or vipu:<model>:no_consume:<size>";

/// The nodes with V-IPU resources, in the order of the configuration, and the errors of their lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGresList {
    nodes: Vec<NodeGres>,
    errors: Vec<GresLineError>,
}

/// An error in a line of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GresLineError {
    /// The nodes of the line; empty if they are unknown.
    nodes: Vec<String>,
    error: ConfError,
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
    /// Parses the resources of all nodes. `models` are the names of the models that have a configuration
    /// file.
    ///
    /// ```
    /// use ipu_slurm::conf::{NodeGresList, SlurmConf};
    ///
    /// let text = "NodeName=n[1-2] Gres=gpu:1,vipu:2:8\nNodeName=n3 Gres=vipu:pod6:no_consume:64\n";
    /// let list = NodeGresList::parse(&SlurmConf::parse("slurm.conf", text), &["pod64"]);
    /// let node = list.node("n2").expect("it has partitions of two IPUs");
    /// assert_eq!(node.gres()[0].to_string(), "vipu:2:8");
    /// assert_eq!(
    ///     list.errors_of("n3")[0].to_string(),
    ///     "slurm.conf:2:18: Gres = vipu:pod6:no_consume:64: the model pod6 has no file pod6.conf; \
    ///      did you mean pod64?",
    /// );
    /// ```
    #[must_use]
    pub fn parse(conf: &SlurmConf, models: &[&str]) -> Self {
        let mut list = Self::default();
        let mut first_lines = BTreeMap::new();
        for line in conf.lines("NodeName") {
            let (gres, mut errors) = parse_line(conf, &line, models);
            if gres.is_empty() && errors.is_empty() {
                continue;
            }
            let names = conf.span(line.name);
            let nodes = host_list::expand("NodeName", names).unwrap_or_else(|error| {
                errors.push(error);
                Vec::new()
            });
            let mut repeated = Vec::new();
            for name in &nodes {
                if first_lines.contains_key(name) {
                    repeated.push(name.clone());
                    continue;
                }
                first_lines.insert(name.clone(), line.name);
                if !gres.is_empty() {
                    let (name, gres) = (name.clone(), gres.clone());
                    list.nodes.push(NodeGres { name, gres });
                }
            }
            if let Some((name, first)) = repeated.first().and_then(|name| first_lines.get_key_value(name)) {
                let rule = format!("{name} is on {} already", conf.place(first));
                let error = names.error("NodeName", rule, "remove it from one of the lines");
                list.errors.push(GresLineError {
                    nodes: repeated,
                    error,
                });
            }
            list.errors.extend(errors.into_iter().map(|error| GresLineError {
                nodes: nodes.clone(),
                error,
            }));
            if list.nodes.len() > MAX_HOSTS {
                let rule = format!("a cluster has at most {MAX_HOSTS} nodes");
                let error = names.error("NodeName", rule, "remove nodes");
                list.errors.push(GresLineError { nodes, error });
                break;
            }
        }
        list
    }

    /// Returns the errors in the order of their lines, each once.
    #[must_use]
    pub fn errors(&self) -> Vec<ConfError> {
        let mut errors: Vec<ConfError> = Vec::new();
        for line in &self.errors {
            // Several lines may have the default of one line.
            if !errors.contains(&line.error) {
                errors.push(line.error.clone());
            }
        }
        errors
    }

    /// Returns the errors in the lines of a node; if no line names it, those in lines of unknown nodes.
    #[must_use]
    pub fn errors_of(&self, node: &str) -> Vec<ConfError> {
        let names_node = |line: &&GresLineError| line.nodes.iter().any(|name| name == node);
        let is_known = self.node(node).is_some() || self.errors.iter().any(|line| names_node(&line));
        let lines = self.errors.iter().filter(|line| match line.nodes.is_empty() {
            true => !is_known,
            false => names_node(line),
        });
        lines.map(|line| line.error.clone()).collect()
    }

    /// Returns the nodes in the order of the configuration.
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

/// Parses the resources of a line, its own or the default ones.
fn parse_line(conf: &SlurmConf, line: &SlurmLine<'_>, models: &[&str]) -> (Vec<VipuGres>, Vec<ConfError>) {
    let mut gres: Vec<VipuGres> = Vec::new();
    let mut errors = Vec::new();
    let Some(setting) = line.get(FIELD) else {
        return (gres, errors);
    };
    for item in conf.span(setting).split(|c| c == ',') {
        match parse_item(item, models) {
            Ok(None) => {}
            Ok(Some(new)) if gres.iter().any(|known| is_same_kind(known, &new)) => {
                errors.push(item.error(FIELD, "the size or model is given twice", "remove one of the two"));
            }
            Ok(Some(new)) => gres.push(new),
            Err(error) => errors.push(error),
        }
    }
    (gres, errors)
}

/// Parses one resource; none if it is not a V-IPU resource.
fn parse_item(item: Span<'_>, models: &[&str]) -> Result<Option<VipuGres>, ConfError> {
    let name = item.text().split(':').next().unwrap_or_default();
    if name != "vipu" {
        return if name.eq_ignore_ascii_case("vipu") {
            Err(item.error(FIELD, "the name is in lower case", FIX))
        } else {
            Ok(None)
        };
    }
    let gres: Gres = item.text().parse().map_err(|error: crate::GresError| {
        let before = item.text().char_indices().nth(error.position - 1);
        let offset = before.map_or(item.text().len(), |(offset, _)| offset);
        item.error_at(offset, FIELD, error.rule, error.fix)
    })?;
    if item.text().contains('(') {
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
        let shown = crate::text::shorten(model, super::span::MAX_FIELD);
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
