//! The settings that Graphcore's Slurm has and a stock Slurm does not, and those of option 1.

use super::Rules;
use crate::conf::{HostMap, SlurmConf, SlurmLine, expand_nodes};
use crate::render::Severity;

/// The value of `OverSubscribe` for nodes that one job has alone.
const EXCLUSIVE: &str = "EXCLUSIVE";

impl Rules<'_, '_> {
    /// Replaces Graphcore's layered plugin by the one below it.
    pub(super) fn select_type(&mut self) {
        let Some(parameters) = self.conf.value("SelectTypeParameters") else {
            return self.select_plugin("select/cons_tres");
        };
        let is_layer = |item: &&str| item.to_ascii_lowercase().starts_with("other_");
        let (layers, rest): (Vec<&str>, Vec<&str>) = parameters.split(',').partition(is_layer);
        let is_linear = layers
            .iter()
            .any(|layer| layer.eq_ignore_ascii_case("other_linear"));
        self.select_plugin(if is_linear {
            "select/linear"
        } else {
            "select/cons_tres"
        });
        if layers.is_empty() {
            return;
        }
        let value = if rest.is_empty() && !is_linear {
            "CR_CPU".to_owned()
        } else {
            rest.join(",")
        };
        let rule = "stock Slurm has no layered plugins";
        if value.is_empty() {
            self.remove("SelectTypeParameters", rule, "remove it");
        } else {
            self.set("SelectTypeParameters", &value, Severity::Error, rule);
        }
    }

    fn select_plugin(&mut self, plugin: &str) {
        let is_vipu = |value: &str| value.eq_ignore_ascii_case("select/vipu");
        if self.conf.value("SelectType").is_some_and(is_vipu) {
            let rule = "stock Slurm has no plugin select/vipu: licenses count the IPUs";
            self.set("SelectType", plugin, Severity::Error, rule);
        }
    }

    /// Removes the key that stock Slurm refuses.
    pub(super) fn directory(&mut self) {
        let rule = "stock Slurm refuses this key, and every command fails";
        self.remove("VipuIpuofDir", rule, "move it to vipu.conf");
    }

    /// Makes the nodes of `map` exclusive, all nodes without a map: a job has the IPU-Machines of its hosts.
    pub(super) fn exclusive_nodes(&mut self, map: Option<&HostMap>) {
        let conf = self.conf;
        for partition in conf.lines("PartitionName") {
            let nodes = partition.get("Nodes").map(|nodes| nodes.value());
            if is_exclusive(&partition) || !may_have_machines(conf, map, nodes) {
                continue;
            }
            let rule = "a job has the IPU-Machines of its nodes (HostMap), so it has the nodes alone";
            let fix = format!("write OverSubscribe={EXCLUSIVE}");
            let own = partition.name.other("OverSubscribe");
            let setting = own.unwrap_or(partition.name);
            self.report(Severity::Error, "OverSubscribe", Some(setting), rule, &fix);
            match own {
                Some(own) => self.edits.replace(own, EXCLUSIVE),
                None => {
                    let text = format!(" OverSubscribe={EXCLUSIVE}");
                    self.edits.append_to(partition.name, text);
                }
            }
        }
    }
}

/// Returns whether a job has the nodes of a Slurm partition alone. `Shared` is the old name of
/// `OverSubscribe`, and is used only if neither the line nor the defaults have the new one.
fn is_exclusive(partition: &SlurmLine<'_>) -> bool {
    let has = |key, wanted| {
        partition
            .get(key)
            .map(|setting| setting.value().eq_ignore_ascii_case(wanted))
    };
    let is_exclusive = has("OverSubscribe", EXCLUSIVE).or_else(|| has("Shared", EXCLUSIVE));
    // From Slurm 26.05 on.
    has("Exclusive", "NODE").or(is_exclusive).unwrap_or(false)
}

/// Returns whether a node of a Slurm partition may have IPU-Machines. `nodes` is the value of `Nodes`.
fn may_have_machines(conf: &SlurmConf, map: Option<&HostMap>, nodes: Option<&str>) -> bool {
    let (Some(map), Some(nodes)) = (map, nodes) else {
        return true;
    };
    let has_machines = |node: &String| node.eq_ignore_ascii_case("ALL") || map.machines(node).is_some();
    let may_have =
        |nodes: &str| expand_nodes("Nodes", nodes).map_or(true, |nodes| nodes.iter().any(has_machines));
    let set_may_have = |node: &str| {
        let mut sets = conf.all("NodeSet").filter(|set| set.value() == node);
        // A set without nodes has those with a feature.
        sets.any(|set| set.other("Nodes").is_none_or(|nodes| may_have(nodes.value())))
    };
    may_have(nodes) || nodes.split(',').any(set_may_have)
}
