//! The files besides `slurm.conf`.

use super::edits::Edits;
use super::{Finding, Model, RenderInput, Severity, SlurmVersion};
use crate::conf::{ConfFiles, NodeGres, NodeGresList, SlurmConf, SlurmSetting, VipuGres};

/// Consecutive numbers at the end of node names, by prefix and number of digits.
type NumberRanges<'a> = (&'a str, usize, Vec<(u32, u32)>);

/// The directory of static partitions for a `vipu.conf` without one.
const POOL_DIR: &str = "/var/lib/ipu-pool/%n";
/// Name of the SPANK plugin.
const SPANK_PLUGIN: &str = "libspank_vipu.so";

/// Returns the text of `vipu.conf` with the keys that it lacks.
pub(super) fn vipu_conf(input: &RenderInput<'_>, findings: &mut Vec<Finding>) -> String {
    let (name, text) = input.vipu_conf;
    let vipu_conf = SlurmConf::parse(name, text);
    let mut result = text.to_owned();
    let mut add = |key: &str, value: &str| {
        if !result.is_empty() && !result.ends_with('\n') {
            result.push('\n');
        }
        result.push_str(&format!("{key}={value}\n"));
    };
    let directory = input.slurm_conf.value("VipuIpuofDir");
    if let (Some(directory), None) = (directory, vipu_conf.get("VipuIpuofDir")) {
        add("VipuIpuofDir", directory);
    }
    if vipu_conf.get("Proxy").is_none() {
        let options = &input.options;
        add("Proxy", &options.proxy);
        let rule = "the hooks ask the proxy, which knows the other owners of IPUs";
        let fix = format!("write Proxy={}", options.proxy);
        findings.push(Finding {
            severity: Severity::Error,
            error: vipu_conf.absent("Proxy", rule, fix),
        });
        if let (Some(path), None) = (&options.proxy_token_file, vipu_conf.get("ProxyTokenFile")) {
            add("ProxyTokenFile", path);
        }
    }
    result
}

/// Adds the directory of static partitions to `vipu.conf`.
pub(super) fn pool_dir(name: &str, text: &mut String, findings: &mut Vec<Finding>) {
    let rule = "without it, the hooks do nothing, and jobs start without their partitions";
    let fix = format!("write PoolDir={POOL_DIR}, and run ipu-slurm pool create on each node");
    findings.push(Finding {
        severity: Severity::Error,
        error: SlurmConf::parse(name, text).absent("PoolDir", rule, fix),
    });
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&format!("PoolDir={POOL_DIR}\n"));
}

/// Returns `gres.conf` with lines for all nodes; none if it does not change.
pub(super) fn gres_conf(old: &str, list: &NodeGresList, findings: &mut Vec<Finding>) -> Option<String> {
    let mut groups: Vec<(&[VipuGres], Vec<&str>)> = Vec::new();
    for node in list.nodes() {
        match groups.iter_mut().find(|(gres, _)| *gres == node.gres()) {
            Some((_, nodes)) => nodes.push(node.name()),
            None => groups.push((NodeGres::gres(node), vec![node.name()])),
        }
    }
    let conf = SlurmConf::parse("gres.conf", old);
    let is_vipu = |line: &&SlurmSetting| {
        let name = if line.has_key("Name") {
            Some(*line)
        } else {
            line.other("Name")
        };
        name.is_some_and(|name| name.value().eq_ignore_ascii_case("vipu"))
    };
    let lines: Vec<&SlurmSetting> = conf.settings().filter(is_vipu).collect();
    let mut edits = Edits::default();
    lines.iter().for_each(|line| edits.remove(line));
    let mut new = edits
        .apply(&conf)
        .pop()
        .map_or_else(|| old.to_owned(), |(_, text)| text);
    if !new.is_empty() && !new.ends_with('\n') {
        new.push('\n');
    }
    for (gres, nodes) in groups {
        let nodes = host_list(&nodes);
        for resource in gres {
            let (kind, count) = match resource {
                VipuGres::Partitions { size, count } => (size.to_string(), count.to_string()),
                VipuGres::Model { model, max_partition } => (model.clone(), max_partition.to_string()),
            };
            new.push_str(&format!(
                "NodeName={nodes} Name=vipu Type={kind} Count={count} Flags=CountOnly\n"
            ));
        }
    }
    if new == old {
        return None;
    }
    if let Some(line) = lines.first() {
        let rule = "counts differ from slurm.conf, or a node is absent: Slurm takes the smaller count";
        findings.push(Finding {
            severity: Severity::Warning,
            error: conf.error(line, rule, "use the rendered lines"),
        });
    }
    Some(new)
}

/// Returns node names as a host list of Slurm: `ipu-pod64-[001-004]`.
fn host_list(names: &[&str]) -> String {
    let mut items: Vec<NumberRanges<'_>> = Vec::new();
    let mut result = Vec::new();
    for name in names {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[prefix.len()..];
        let Some(number) = digits.parse::<u32>().ok() else {
            result.push((*name).to_owned());
            continue;
        };
        match items
            .iter_mut()
            .find(|(known, width, _)| *known == prefix && *width == digits.len())
        {
            Some((_, _, ranges)) => match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
                _ => ranges.push((number, number)),
            },
            None => items.push((prefix, digits.len(), vec![(number, number)])),
        }
    }
    for (prefix, width, ranges) in items {
        let ranges: Vec<String> = ranges
            .into_iter()
            .map(|(first, last)| match first == last {
                true => format!("{first:0width$}"),
                false => format!("{first:0width$}-{last:0width$}"),
            })
            .collect();
        let ranges = ranges.join(",");
        let is_one = !ranges.contains([',', '-']);
        result.push(if is_one {
            format!("{prefix}{ranges}")
        } else {
            format!("{prefix}[{ranges}]")
        });
    }
    result.join(",")
}

/// Returns `plugstack.conf` with the SPANK plugin, none if it does not change, and whether it has the plugin.
pub(super) fn plugstack_conf(
    input: &RenderInput<'_>,
    has_option: bool,
    findings: &mut Vec<Finding>,
) -> (Option<String>, bool) {
    let old = input.plugstack_conf;
    let plugstack = SlurmConf::parse("plugstack.conf", old);
    let is_plugin = |line: &&str| !line.trim_start().starts_with('#') && line.contains(SPANK_PLUGIN);
    let found = old.lines().find(is_plugin);
    let plugin = format!("optional {}", input.options.spank_plugin);
    let (rule, new) = match found.map(str::trim_start) {
        Some(line) if line.starts_with("required") => (
            "a required plugin that does not load stops slurmd and every srun",
            old.replacen(line, &line.replacen("required", "optional", 1), 1),
        ),
        Some(_) => return (None, true),
        None if !has_option => return (None, false),
        None => {
            let break_line = if old.is_empty() || old.ends_with('\n') {
                ""
            } else {
                "\n"
            };
            (
                "srun, sbatch and salloc have no option --ipus",
                format!("{old}{break_line}{plugin}\n"),
            )
        }
    };
    findings.push(Finding {
        severity: Severity::Warning,
        error: plugstack.absent("plugin", rule, format!("write {plugin}")),
    });
    (Some(new), true)
}

/// Returns the table of limits for `ipu_slurm.lua`.
pub(super) fn limits(conf: &ConfFiles, models: &[Model<'_>]) -> String {
    let is_default =
        |model: &&Model<'_>| conf.model("vipu").is_some() && conf.model(model.name) == conf.model("vipu");
    let default = match models {
        [only] => Some(only),
        _ => models.iter().find(is_default),
    };
    let mut text = String::from(
        "-- The IPUs that jobs may ask for, by `ipu-slurm render`. After a change: `touch job_submit.lua`.\nreturn {\n",
    );
    if let Some(default) = default {
        text.push_str(&format!("  default_model = \"{}\",\n", default.name));
    }
    text.push_str("  models = {\n");
    for model in models {
        let feature = model
            .node_feature
            .map(|feature| format!(", feature = \"{feature}\""));
        text.push_str(&format!(
            "    [\"{}\"] = {{ max_ipus_per_job = {}, pod_ipus = {}, largest_partition = {}{} }},\n",
            model.name,
            model.max_ipus_per_job,
            // 0 licenses switch a model off.
            model.ipus.max(1),
            model.largest_partition,
            feature.unwrap_or_default()
        ));
    }
    text.push_str("  },\n}\n");
    text
}

/// Returns steps and limits that no file can express.
pub(super) fn notes(input: &RenderInput<'_>, models: &[Model<'_>], has_slurmdbd: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let version = input.version;
    if models.is_empty() {
        return notes;
    }
    for model in models {
        if !model.has_license_only && !input.options.ipus.contains_key(model.name) {
            notes.push(format!(
                "{} has {} IPUs, from Licenses or the Gres of its nodes: if its controller has more, use --ipus {}=N",
                model.name, model.ipus, model.name
            ));
        }
    }
    if models.iter().any(|model| !model.has_license_only) {
        notes.push(
            "copy ipu_slurm.lua and job_submit.lua next to slurm.conf: JobSubmitPlugins=lua needs them"
                .to_owned(),
        );
    }
    if !has_slurmdbd {
        notes.push(
            "there is no slurmdbd, so sacct shows no IPUs: after you set it up, render again for AccountingStorageTRES"
                .to_owned(),
        );
    }
    if version < SlurmVersion::LICENSES_IN_TASKS {
        notes.push(format!(
            "Slurm {version} shows TaskProlog no licenses: a task of srun or salloc is held back without its \
             partition only if the job used --ipus"
        ));
    }
    if version.loses_licenses() {
        notes.push(format!(
            "Slurm {version} loses the licenses of requeued jobs up to 25.11.6: more jobs wait in PrologSlurmctld"
        ));
    }
    if version >= SlurmVersion::REQUEUE_DELAY {
        notes.push(format!(
            "Slurm {version} starts a job whose PrologSlurmctld failed again after 121 s, or sooner with \
             SchedulerParameters=requeue_delay=N"
        ));
    }
    notes.push("restart slurmctld and all slurmd after the files are in place".to_owned());
    notes
}
