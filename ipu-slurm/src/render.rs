//! Files that a stock Slurm needs for IPUs, from those of Graphcore's plugin: `slurm.conf`, `gres.conf`,
//! `plugstack.conf`, and the limits of `ipu_slurm.lua`.
//!
//! The input is a configuration of Graphcore's plugin, or an earlier rendering: to render twice
//! changes nothing. A setting is changed in the file that has it, and a line is added only if no file has
//! its key.

mod edits;
mod outputs;
mod rules;
mod version;

pub use version::SlurmVersion;

use core::fmt;
use std::collections::BTreeMap;

use ipu_core::job::{ErrorList, Violation};

use crate::conf::{ConfError, ConfFiles, HostMap, NodeGresList, SlurmConf, VipuGres};
use edits::Edits;

/// A file by its name and text.
pub type ConfText<'a> = (&'a str, &'a str);

/// The configuration that [`render`] reads.
#[derive(Clone, Debug)]
pub struct RenderInput<'a> {
    /// The version of Slurm.
    pub version: SlurmVersion,
    /// `slurm.conf` and the files that it includes.
    pub slurm_conf: SlurmConf,
    /// `vipu.conf`.
    pub vipu_conf: ConfText<'a>,
    /// The files of models, by name of the model.
    pub models: &'a [ConfText<'a>],
    /// The host map that `HostMap` names. Without it, jobs of every partition have IPU-Machines.
    pub host_map: Option<&'a HostMap>,
    /// The text of `gres.conf`; empty if there is none.
    pub gres_conf: &'a str,
    /// The text of `plugstack.conf`; empty if there is none.
    pub plugstack_conf: &'a str,
    /// The paths and numbers that no file has.
    pub options: RenderOptions,
}

/// Paths and numbers that no configuration file has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenderOptions {
    /// The IPUs of models, by name. Those of others are the licenses of `slurm.conf`, or else the largest
    /// partition.
    pub ipus: BTreeMap<String, u32>,
    /// The URL of the proxy for a `vipu.conf` without one.
    pub proxy: String,
    /// The token file for a `vipu.conf` without a proxy; none for a Unix socket.
    pub proxy_token_file: Option<String>,
    /// The directory of the hooks.
    pub hook_directory: String,
    /// The path of the SPANK plugin on all hosts.
    pub spank_plugin: String,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            ipus: BTreeMap::new(),
            proxy: "unix:/run/vipu-proxy/socket".to_owned(),
            proxy_token_file: None,
            hook_directory: "/usr/lib/ipu-slurm".to_owned(),
            spank_plugin: "/usr/local/lib/slurm/libspank_vipu.so".to_owned(),
        }
    }
}

/// The importance of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Jobs do not get IPUs, or Slurm does not start, without the change.
    Error,
    /// Jobs get IPUs without the change, but something else is lost.
    Warning,
}

/// A place of the configuration that is changed, with the reason.
///
/// Displays as `error: file:line:column: field = value: reason; change`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The importance.
    pub severity: Severity,
    /// The place, the reason and the change.
    pub error: ConfError,
}

/// The files for a stock Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rendered {
    /// New files and files that change, by name: complete texts.
    pub files: Vec<(String, String)>,
    /// The changes with their reasons.
    pub findings: Vec<Finding>,
    /// Steps and limits that no file can express.
    pub notes: Vec<String>,
    /// Whether jobs may use `--ipus`, so that every host needs the SPANK plugin.
    pub uses_plugin: bool,
    /// Whether `files` have all changes. A line is not added if an included file that cannot be read may have
    /// its key.
    pub is_complete: bool,
}

/// A model that nodes have, whose IPUs are given, or that has a license.
#[derive(Debug)]
struct Model<'a> {
    name: &'a str,
    /// Whether only `Licenses` names it: its jobs use `--licenses`, and need no plugin and no script.
    has_license_only: bool,
    ipus: u32,
    largest_partition: u32,
    max_ipus_per_job: u32,
    node_feature: Option<&'a str>,
}

impl Finding {
    const fn error(error: ConfError) -> Self {
        Self {
            severity: Severity::Error,
            error,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{severity}: {}", self.error)
    }
}

/// Displays as all files, each after its name, as `head` prints them.
impl fmt::Display for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, text)) in self.files.iter().enumerate() {
            let blank = if index == 0 { "" } else { "\n" };
            write!(f, "{blank}==> {name} <==\n{text}")?;
        }
        Ok(())
    }
}

/// Returns the files that a stock Slurm needs, with each change and its reason.
///
/// # Errors
///
/// All errors that have no safe correction, in the order of the files; never empty.
///
/// ```
/// use ipu_slurm::conf::SlurmConf;
/// use ipu_slurm::render::{RenderInput, RenderOptions, render};
///
/// let vipu_conf = "ApiHost=ipu-pod64-001\nIpuofDir=/home/ipuof\nProxy=unix:/run/vipu-proxy/socket\n";
/// let rendered = render(&RenderInput {
///     version: "24.11".parse().unwrap(),
///     slurm_conf: SlurmConf::parse("slurm.conf", "NodeName=n[1-2] Gres=vipu:pod64:no_consume:64\n"),
///     vipu_conf: ("vipu.conf", vipu_conf),
///     models: &[("pod64", vipu_conf)],
///     host_map: None,
///     gres_conf: "",
///     plugstack_conf: "",
///     options: RenderOptions::default(),
/// })?;
/// let gres_conf = rendered.files.iter().find(|(name, _)| name == "gres.conf").expect("it is new");
/// assert_eq!(gres_conf.1, "NodeName=n[1-2] Name=vipu Type=pod64 Count=64 Flags=CountOnly\n");
/// let change = "error: slurm.conf:1:1: Licenses is absent: Slurm counts the IPUs of a model as licenses; \
///               write Licenses=pod64:64";
/// assert!(rendered.findings.iter().any(|finding| finding.to_string() == change));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn render(input: &RenderInput<'_>) -> Result<Rendered, ErrorList<ConfError>> {
    let slurm_conf = &input.slurm_conf;
    let mut findings = Vec::new();
    let mut vipu_conf = outputs::vipu_conf(input, &mut findings);

    let mut errors = Vec::new();
    let conf = ConfFiles::parse((input.vipu_conf.0, &vipu_conf), input.models);
    let conf = conf.map_err(|mistakes| errors.extend(mistakes)).ok();
    let mut names: Vec<&str> = input.models.iter().map(|(name, _)| *name).collect();
    if conf.as_ref().is_none_or(|conf| conf.model("vipu").is_some()) {
        names.push("vipu");
    }
    let gres = NodeGresList::parse(slurm_conf, &names);
    errors.extend(gres.errors());
    let Some(conf) = conf.filter(|_| errors.is_empty()) else {
        return Err(errors.into());
    };
    let models = models(input, &conf, &gres)?;
    let has_map = conf.cluster().host_map().is_some();
    let has_gres = !gres.nodes().is_empty();
    if models.is_empty() && !has_map && !has_gres {
        let fix = "add Gres=vipu:<model>:no_consume:<size> to the NodeName lines, <model>:<IPUs> to Licenses, or \
                   HostMap to vipu.conf";
        let mut errors = rules::absent_licenses(slurm_conf, &conf);
        let has_traces = !errors.is_empty();
        errors.extend(slurm_conf.refused_lines().cloned());
        if !has_traces {
            errors.push(slurm_conf.absent("Gres", "no node has IPUs", fix));
        }
        let repeated = rules::repeated(slurm_conf, input.version);
        errors.extend(repeated.into_iter().map(|finding| finding.error));
        return Err(errors.into());
    }

    if conf.cluster().every_job_has_one() {
        ensure_one_size(input.vipu_conf.0, &gres)?;
    }
    let is_static = |resource: &VipuGres| matches!(resource, VipuGres::Partitions { .. });
    let has_static = gres.nodes().iter().any(|node| node.gres().iter().any(is_static));
    if has_static && conf.cluster().pool_dir("").is_none() {
        outputs::pool_dir(input.vipu_conf.0, &mut vipu_conf, &mut findings);
    }
    let mut edits = Edits::default();
    let is_complete = rules::apply(
        input,
        &conf,
        &models,
        (has_gres, has_static),
        &mut edits,
        &mut findings,
    );
    let has_option = models.iter().any(|model| !model.has_license_only);
    let (plugstack, uses_plugin) = outputs::plugstack_conf(input, has_option, &mut findings);
    let mut files = edits.apply(slurm_conf);
    let mut add = |name: &str, text: Option<String>| files.extend(text.map(|text| (name.to_owned(), text)));
    add(
        "gres.conf",
        outputs::gres_conf(input.gres_conf, &gres, &mut findings),
    );
    add("plugstack.conf", plugstack);
    add(
        "ipu_limits.lua",
        has_option.then(|| outputs::limits(&conf, &models)),
    );
    add(
        input.vipu_conf.0,
        (vipu_conf != input.vipu_conf.1).then_some(vipu_conf),
    );
    Ok(Rendered {
        files,
        findings,
        notes: outputs::notes(input, &models, rules::has_slurmdbd(slurm_conf)),
        uses_plugin,
        is_complete,
    })
}

/// Checks that no node has partitions of several sizes: with `EveryJobHasOne`, Prolog takes any.
fn ensure_one_size(vipu_conf: &str, gres: &NodeGresList) -> Result<(), ErrorList<ConfError>> {
    let mut several = gres.nodes().iter().filter(|node| {
        let is_static = |resource: &&VipuGres| matches!(resource, VipuGres::Partitions { .. });
        node.gres().iter().filter(is_static).count() > 1
    });
    let Some(node) = several.next() else {
        return Ok(());
    };
    let rule = format!(
        "node {} has partitions of several sizes, and a job would get any of them",
        node.name()
    );
    let fix = "remove it, or give each node partitions of one size";
    let violation = Violation::new("EveryJobHasOne", Some("1"), rule, fix);
    Err(vec![crate::conf::at_beginning(vipu_conf, violation)].into())
}

/// Returns the models that nodes have, whose IPUs are given, or that have a license, by name.
fn models<'a>(
    input: &'a RenderInput<'_>,
    conf: &'a ConfFiles,
    gres: &'a NodeGresList,
) -> Result<Vec<Model<'a>>, ErrorList<ConfError>> {
    let mut largest: BTreeMap<&str, u32> = BTreeMap::new();
    for (name, ipus) in &input.options.ipus {
        largest.insert(name, previous_power_of_two(*ipus));
    }
    let mut of_nodes: BTreeMap<&str, u32> = BTreeMap::new();
    for resource in gres.nodes().iter().flat_map(|node| node.gres()) {
        if let VipuGres::Model { model, max_partition } = resource {
            let size = of_nodes.entry(model).or_default();
            *size = max_partition.get().max(*size);
        }
    }
    largest.extend(of_nodes);
    let licenses = rules::licenses(&input.slurm_conf);
    let is_license_only = |name: &str| !largest.contains_key(name);
    let licensed: Vec<(&str, u32)> = conf
        .models()
        .filter(|(name, _)| is_license_only(name))
        .filter_map(|(name, _)| Some((name, previous_power_of_two(licenses.count(name)?))))
        .collect();
    let names: Vec<(&str, u32, bool)> = largest
        .iter()
        .map(|(name, size)| (*name, *size, false))
        .chain(licensed.iter().map(|(name, size)| (*name, *size, true)))
        .collect();
    let mut models = Vec::new();
    for (name, largest_partition, has_license_only) in names {
        let file = format!("{name}.conf");
        let refuse = |rule: &str, fix: &str| {
            let violation = Violation::new("model", Some(name), rule, fix);
            ErrorList::from(vec![crate::conf::at_beginning(&file, violation)])
        };
        let Some(model) = conf.model(name) else {
            return Err(refuse(
                "has no file",
                "create it, or correct the name of the model",
            ));
        };
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(refuse(
                "a model with a license has a name that begins with a letter",
                "rename the file, for example to pod64.conf",
            ));
        }
        let given = input.options.ipus.get(name).copied();
        models.push(Model {
            name,
            has_license_only,
            ipus: given.or(licenses.count(name)).unwrap_or(largest_partition),
            largest_partition,
            max_ipus_per_job: model.max_ipus_per_job(),
            node_feature: model.node_feature(),
        });
    }
    Ok(models)
}

fn previous_power_of_two(number: u32) -> u32 {
    number.checked_ilog2().map_or(1, |exponent| 1 << exponent)
}
