//! The environments of Prolog, Epilog and TaskProlog on a node.

use std::ffi::OsString;

use ipu_slurm::{HookEnvironment, NodeHook, NodeRequest, NodeTaskRequest};

fn environment(variables: &[(&str, &str)]) -> HookEnvironment {
    let variables = variables
        .iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    HookEnvironment::new(variables)
}

#[test]
fn a_node_hook_knows_its_job_and_node() {
    let mut variables = vec![
        ("SLURM_SCRIPT_CONTEXT", "epilog_slurmd"),
        ("SLURM_JOB_ID", "7"),
        ("SLURMD_NODENAME", "host-1"),
    ];
    let request = NodeRequest::parse(&environment(&variables), NodeHook::Epilog).unwrap();
    assert_eq!((request.job_id, request.node.as_str()), (7, "host-1"));
    let error = NodeRequest::parse(&environment(&variables), NodeHook::Prolog).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("SLURM_SCRIPT_CONTEXT = epilog_slurmd: must be prolog_slurmd")
    );
    variables[2].1 = "../etc";
    let error = NodeRequest::parse(&environment(&variables), NodeHook::Epilog).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("SLURMD_NODENAME = ../etc: must be the name of a node")
    );
}

#[test]
fn a_task_knows_its_number_on_the_node() {
    let variables = [
        ("SLURM_SCRIPT_CONTEXT", "prolog_task"),
        ("SLURM_JOB_ID", "7"),
        ("SLURMD_NODENAME", "host-1"),
        ("SLURM_PROCID", "5"),
        ("SLURM_LOCALID", "1"),
        ("VIPU_PARTITIONS", "2:2"),
    ];
    let task = NodeTaskRequest::parse(&environment(&variables)).unwrap();
    assert_eq!((task.local_task, task.requests_partitions), (1, true));
    let error = NodeTaskRequest::parse(&environment(&variables[..3])).unwrap_err();
    assert!(error.to_string().starts_with("SLURM_LOCALID"), "{error}");
}
