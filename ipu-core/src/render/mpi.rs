//! Inputs of Open MPI's launcher: the hostfile and the environment variables by which it reaches the workers
//! (V-IPU guide §6.8.1).

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use crate::job::JobSpec;

/// Returns the hostfile of instance `instance`: its workers, one slot each, in order of their GCD.
///
/// ```
/// use ipu_core::job::{Limits, RawJob};
/// use ipu_core::render::hostfile;
///
/// let raw: RawJob = serde_json::from_str(
///     r#"{"metadata": {"name": "mnist", "uid": "1"},
///         "spec": {"ipusPerJobInstance": "4", "workersPerJobInstance": "2", "launcher": {"command": ["mpirun"]}}}"#,
/// )?;
/// let job = raw.parse(&Limits::default())?.spec;
/// assert_eq!(hostfile(&job, 0).lines().count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn hostfile(job: &JobSpec, instance: u32) -> String {
    (0..job.workers_per_instance())
        .map(|worker| format!("{} slots=1\n", job.worker_name(instance, worker)))
        .collect()
}

/// The environment variables by which a launcher's `mpirun` starts processes on the workers.
///
/// They are those of Open MPI 4. Their names are not documented for IPUJobs; they follow the MPI operator,
/// which the IPU Operator resembles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpiEnv<'a> {
    /// The program that runs a command on a worker, given the worker's name and the command.
    pub remote_agent: &'a str,
    /// The path of the hostfile.
    pub hostfile: &'a str,
    /// Interfaces or subnets for MPI between the workers; none leaves it to Open MPI.
    pub tcp_interface: Option<&'a str>,
}

impl MpiEnv<'_> {
    /// Returns the variables, always in this order: agent, hostfile, and the interface if there is one.
    #[must_use]
    pub fn vars(&self) -> Vec<(&'static str, String)> {
        let mut vars: Vec<(&'static str, String)> = [
            ("OMPI_MCA_plm_rsh_agent", self.remote_agent.to_string()),
            ("OMPI_MCA_orte_default_hostfile", self.hostfile.to_string()),
        ]
        .into();
        vars.extend(
            self.tcp_interface
                .map(|interface| ("OMPI_MCA_btl_tcp_if_include", interface.to_string())),
        );
        vars
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::limits::Limits;
    use crate::job::raw::RawJob;

    #[test]
    fn a_hostfile_lists_the_workers_of_one_instance_only() {
        let mut job = RawJob::default();
        job.metadata.name = Some("bert".into());
        job.metadata.assign("u", "");
        job.spec.job_instances = Some(2.into());
        job.spec.ipus_per_job_instance = Some(4.into());
        job.spec.workers_per_job_instance = Some(2.into());
        let job = job.parse(&Limits::default()).unwrap().spec;
        assert_eq!(
            hostfile(&job, 1),
            "bert-worker-2 slots=1\nbert-worker-3 slots=1\n"
        );
        assert_eq!(
            (job.launcher_name(0), job.launcher_name(1)),
            ("bert-launcher".into(), "bert-launcher-1".into())
        );
    }

    #[test]
    fn the_interface_is_exported_only_if_set() {
        let mut env = MpiEnv {
            remote_agent: "/a",
            hostfile: "/h",
            tcp_interface: None,
        };
        assert_eq!(env.vars().len(), 2);
        env.tcp_interface = Some("eth0");
        assert_eq!(
            env.vars()[2],
            ("OMPI_MCA_btl_tcp_if_include", String::from("eth0"))
        );
    }
}
