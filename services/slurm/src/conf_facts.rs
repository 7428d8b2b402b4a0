//! The facts in files with mistakes: whether a job asks for IPUs. Only such a job must not start.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ipu_slurm::conf::SlurmConf;
use ipu_slurm::host_map::{may_name_node, nodes_of};
use ipu_slurm::{HookEnvironment, NodeTaskRequest, TaskRequest, may_request_ipus};

use crate::conf_files::{SLURM_FILES, VIPU_CONF, has_model_key};
use crate::failure::Failure;
use crate::pool_directory::has_traces;
use crate::run_file;
use crate::safe_file;

/// The readable parts of a configuration that cannot be used.
#[derive(Debug, Default)]
pub(crate) struct ConfFacts {
    /// The text of each file by name without `.conf`; none if it cannot be read.
    files: BTreeMap<String, Option<String>>,
}

impl ConfFacts {
    /// Reads the files of a directory, without an error for any of them.
    pub(crate) fn gather(directory: &Path) -> Self {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let Some(stem) = name.strip_suffix(".conf") else {
                continue;
            };
            if name == VIPU_CONF || !SLURM_FILES.contains(&stem) {
                files.insert(stem.to_owned(), safe_file::read_text(&path).ok());
            }
        }
        Self { files }
    }

    /// Returns whether a file is that of a model, so that a license without a file is not one of IPUs.
    pub(crate) fn has_model(&self) -> bool {
        self.files.values().flatten().any(|text| has_model_key(text))
    }

    /// Returns whether a hook of slurmctld is that of a job with IPUs: it has an option of the plugin, a
    /// license with a file, be it wrong or unreadable, or a node of the host map.
    pub(crate) fn may_request_ipus(&self, variables: &HookEnvironment) -> bool {
        may_request_ipus(variables, |license| self.files.contains_key(license))
            || self
                .paths("HostMap")
                .iter()
                .any(|map| may_have_machines(map, variables))
    }

    /// Returns whether a task is that of a job with IPUs: its environment says so, or a hook has written a
    /// file for the job.
    pub(crate) fn task_wants_ipus(&self, variables: &HookEnvironment) -> Result<bool, Failure> {
        let models: Vec<&str> = self.files.keys().map(String::as_str).collect();
        let request = TaskRequest::parse(variables, &models)?;
        if request.requests_ipus {
            return Ok(true);
        }
        let name = request.identity.env_file_name();
        let has_run_file = self
            .ipuof_directories()
            .iter()
            .any(|directory| run_file::exists(directory, &name));
        let has_partition = NodeTaskRequest::parse(variables).is_ok_and(|task| {
            let is_exclusive = self.values("EveryJobHasOne").iter().any(|value| value == "1");
            let mut pools = self.pool_dirs(&task.node).into_iter();
            task.requests_partitions || pools.any(|root| has_traces(&root, &task, is_exclusive))
        });
        // A node without a copy of the map makes no statement.
        let mut maps = self.paths("HostMap").into_iter().filter(|map| map.exists());
        Ok(has_run_file || has_partition || maps.any(|map| may_have_machines(&map, variables)))
    }

    /// Returns the directories of a node's static partitions.
    pub(crate) fn pool_dirs(&self, node: &str) -> Vec<PathBuf> {
        let directories = self.paths("PoolDir").into_iter();
        let of_node = |path: PathBuf| path.to_str().map(|path| path.replace("%n", node).into());
        directories.filter_map(of_node).collect()
    }

    /// Returns the directories of jobs' files.
    pub(crate) fn ipuof_directories(&self) -> Vec<PathBuf> {
        let keys = ["IpuofDir", "VipuIpuofDir"];
        keys.iter().flat_map(|key| self.paths(key)).collect()
    }

    fn paths(&self, key: &str) -> Vec<PathBuf> {
        let values = self.values(key).into_iter();
        let mut paths: Vec<PathBuf> = values
            .filter(|value| value.starts_with('/'))
            .map(PathBuf::from)
            .collect();
        paths.sort();
        paths.dedup();
        paths
    }

    fn values(&self, key: &str) -> Vec<String> {
        let texts = self.files.values().flatten();
        let values = texts.flat_map(|text| {
            let conf = SlurmConf::parse("", text);
            let values = conf.all(key).map(|setting| setting.value().to_owned());
            values.collect::<Vec<_>>()
        });
        values.collect()
    }
}

/// Returns whether a host map names a node of the job, or cannot be read.
fn may_have_machines(map: &Path, variables: &HookEnvironment) -> bool {
    match (safe_file::read_text(map), nodes_of(variables)) {
        (Ok(text), Ok(nodes)) => may_name_node(&text, &nodes),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the facts of these files, and their directory.
    fn facts(files: &[(&str, &str)]) -> (tempfile::TempDir, ConfFacts) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let facts = ConfFacts::gather(directory.path());
        (directory, facts)
    }

    fn variables(pairs: &[(&str, &str)]) -> HookEnvironment {
        HookEnvironment::new(pairs.iter().map(|(name, value)| (name.into(), value.into())))
    }

    fn task(more: &[(&str, &str)]) -> HookEnvironment {
        let mut pairs = vec![
            ("SLURM_SCRIPT_CONTEXT", "prolog_task"),
            ("SLURM_CLUSTER_NAME", "c"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURMD_NODENAME", "n1"),
        ];
        pairs.extend(more);
        variables(&pairs)
    }

    #[test]
    fn a_license_with_a_file_is_one_of_ipus_and_others_are_not() {
        let (_directory, facts) = facts(&[("vipu.conf", "Prxy=x\n"), ("pod64.conf", ""), ("gres.conf", "")]);
        let requests_ipus =
            |licenses| facts.may_request_ipus(&variables(&[("SLURM_JOB_LICENSES", licenses)]));
        for licenses in ["pod64:4", "other:1,pod64:4", "vipu:2", "pod64@cluster:1"] {
            assert!(requests_ipus(licenses), "{licenses}");
        }
        for licenses in ["other:1", "gres:1", ""] {
            assert!(!requests_ipus(licenses), "{licenses}");
        }
        assert!(facts.may_request_ipus(&variables(&[("SPANK_VIPU_IPUS", "4")])));
        assert!(!ConfFacts::gather(Path::new("/absent")).may_request_ipus(&variables(&[])));
    }

    #[test]
    fn a_job_on_a_host_with_machines_wants_ipus() {
        let directory = tempfile::tempdir().unwrap();
        let map = directory.path().join("ipum.allocs");
        let (_directory, facts) = facts(&[("vipu.conf", &format!("Porxy=1\nHostMap={}\n", map.display()))]);
        let nodes = |list| [("SLURM_JOB_NODELIST", list), ("SLURM_NODELIST", list)];
        let hook = |list| facts.may_request_ipus(&variables(&nodes(list)));
        let wants = |list| facts.task_wants_ipus(&task(&nodes(list))).unwrap();
        // slurmctld's host must have the map.
        assert!(hook("n1") && !wants("n1"));
        fs::write(&map, "n1:a1,a2\nn3:a3 \n").unwrap();
        for (list, has_machines) in [("n1", true), ("n[2-3]", true), ("n2", false), ("n[", true)] {
            assert_eq!(hook(list), has_machines, "{list}");
            assert_eq!(wants(list), has_machines, "{list}");
        }
    }

    #[test]
    fn a_file_of_a_model_explains_all_licenses() {
        for (text, has) in [("ApiHost=pod\n", true), ("Key=x\n", false)] {
            let (_directory, facts) = facts(&[("vipu.conf", ""), ("pod64.conf", text)]);
            assert_eq!(facts.has_model(), has, "{text}");
        }
        assert!(!ConfFacts::gather(Path::new("/absent")).has_model());
    }

    #[test]
    fn a_task_with_a_file_of_its_job_wants_ipus() {
        let ipuof = tempfile::tempdir().unwrap();
        let model = format!("ApiHots=x\n ipuofdir = {} # shared\n", ipuof.path().display());
        let (_directory, facts) = facts(&[("vipu.conf", ""), ("pod64.conf", &model)]);
        let wants = |more: &[_]| facts.task_wants_ipus(&task(more)).unwrap();
        assert!(!wants(&[]));
        assert!(!wants(&[("SLURM_JOB_LICENSES", "other:1")]));
        assert!(wants(&[("SLURM_JOB_LICENSES", "pod64:1")]));
        assert!(wants(&[("VIPU_IPUS", "4")]));
        assert!(wants(&[("VIPU_PARTITIONS", "2:1")]));
        fs::write(ipuof.path().join("c-7.env"), "").unwrap();
        assert!(wants(&[]));
    }

    #[test]
    fn a_task_with_a_pointer_or_a_reason_wants_its_partition() {
        let root = tempfile::tempdir().unwrap();
        for name in ["free", "allocated", "reasons"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let pool_dir = format!("PoolDir={}\n", root.path().display());
        let (_directory, with_pool) = facts(&[("vipu.conf", &format!("Prxy=x\n{pool_dir}"))]);
        assert!(!with_pool.task_wants_ipus(&task(&[])).unwrap());
        for file in ["p7", "reasons/p7"] {
            fs::write(root.path().join(file), "a\n").unwrap();
            assert!(with_pool.task_wants_ipus(&task(&[])).unwrap(), "{file}");
            fs::remove_file(root.path().join(file)).unwrap();
        }
        let (_directory, exclusive) = facts(&[("vipu.conf", &format!("EveryJobHasOne=1\n{pool_dir}"))]);
        assert!(exclusive.task_wants_ipus(&task(&[])).unwrap());
    }
}
