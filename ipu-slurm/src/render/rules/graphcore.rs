//! The settings that Graphcore's Slurm has and a stock Slurm does not, and those of option 1.

use super::Rules;
use crate::conf::{HostMap, expand_nodes};
use crate::render::slurm_text::Setting;
use crate::render::{Finding, Severity};

impl Rules<'_, '_> {
    /// Includes the file with the settings for IPUs.
    pub(super) fn include(&mut self) {
        let Some(name) = self.included.as_ref().map(|file| file.name) else {
            return;
        };
        if !self.slurm_conf.includes(name) {
            let rule = format!("Slurm does not read {name}");
            let line = format!("Include {name}");
            let error = self.slurm_conf.absent("Include", rule, format!("write {line}"));
            self.slurm_conf.add(line);
            self.findings.push(Finding {
                severity: Severity::Error,
                error,
            });
        }
    }

    /// Replaces Graphcore's layered plugin by the one below it.
    pub(super) fn select_type(&mut self) {
        let Some((parameters, _)) = self.get("SelectTypeParameters") else {
            return self.select_plugin("select/cons_tres");
        };
        let is_layer = |item: &&str| item.to_ascii_lowercase().starts_with("other_");
        let (layers, rest): (Vec<&str>, Vec<&str>) = parameters.value.split(',').partition(is_layer);
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
        let is_vipu = |(setting, _): &(Setting<'_>, bool)| setting.value.eq_ignore_ascii_case("select/vipu");
        if self.get("SelectType").as_ref().is_some_and(is_vipu) {
            let rule = "stock Slurm has no plugin select/vipu: licenses count the IPUs";
            self.set("SelectType", plugin, Severity::Error, rule);
        }
    }

    /// Removes the key that stock Slurm refuses.
    pub(super) fn directory(&mut self) {
        let rule = "stock Slurm refuses this key, and every command fails";
        self.remove("VipuIpuofDir", rule, "move it to vipu.conf");
    }

    /// Removes a key from both files.
    pub(super) fn remove(&mut self, key: &str, rule: &str, fix: &str) {
        for file in [Some(&mut *self.slurm_conf), self.included.as_deref_mut()]
            .into_iter()
            .flatten()
        {
            for setting in file.all(key) {
                let error = file.error(&setting, rule.to_owned(), fix.to_owned());
                file.remove(&setting);
                self.findings.push(Finding {
                    severity: Severity::Error,
                    error,
                });
            }
        }
    }

    /// Makes the nodes of `map` exclusive, all nodes without a map: a job has the IPU-Machines of its hosts.
    pub(super) fn exclusive_nodes(&mut self, map: Option<&HostMap>) {
        // The name of a node set looks like that of a node.
        let map = map.filter(|_| self.get("NodeSet").is_none());
        for file in [Some(&mut *self.slurm_conf), self.included.as_deref_mut()]
            .into_iter()
            .flatten()
        {
            for partition in file.all("PartitionName") {
                let nodes = file.on_line_of(&partition, "Nodes");
                if !may_have_machines(map, nodes.as_ref().map(|nodes| nodes.value)) {
                    continue;
                }
                let rule =
                    "a job has the IPU-Machines of its nodes (HostMap), so it has the nodes alone".to_owned();
                let value = " OverSubscribe=EXCLUSIVE";
                let fix = format!("write{value}");
                let old = file.on_line_of(&partition, "OverSubscribe");
                let exclusive = file.on_line_of(&partition, "Exclusive");
                let error = match &old {
                    Some(old) if old.value.eq_ignore_ascii_case("EXCLUSIVE") => continue,
                    _ if exclusive.is_some_and(|value| value.value.eq_ignore_ascii_case("NODE")) => continue,
                    Some(old) => {
                        file.replace(old, "EXCLUSIVE");
                        file.error(old, rule, fix)
                    }
                    None => {
                        file.append_to(&partition, value.to_owned());
                        file.error(&partition, rule, fix)
                    }
                };
                self.findings.push(Finding {
                    severity: Severity::Error,
                    error,
                });
            }
        }
    }
}

/// Returns whether a node of a Slurm partition may have IPU-Machines. `nodes` is the value of `Nodes`.
fn may_have_machines(map: Option<&HostMap>, nodes: Option<&str>) -> bool {
    let (Some(map), Some(nodes)) = (map, nodes) else {
        return true;
    };
    let has_machines = |node: &String| node.eq_ignore_ascii_case("ALL") || map.machines(node).is_some();
    expand_nodes("Nodes", nodes).map_or(true, |nodes| nodes.iter().any(has_machines))
}
