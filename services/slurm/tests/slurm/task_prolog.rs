//! The program `ipu-slurm task-prolog` without a Slurm.

use std::fs;
use std::process::Command;

#[test]
fn a_task_without_ipus_inherits_no_variable_that_selects_ipus() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("slurm.conf", "ClusterName=lab\n");
    write("vipu.conf", "Proxy=http://127.0.0.1:9\n");
    write("pod16.conf", "ApiHost=127.0.0.1\n");
    let output = Command::new(env!("CARGO_BIN_EXE_ipu-slurm"))
        .arg("task-prolog")
        .env_clear()
        .envs([
            ("SLURM_SCRIPT_CONTEXT", "prolog_task"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_CLUSTER_NAME", "lab"),
            ("SLURM_PROCID", "0"),
        ])
        .envs([
            ("SLURM_JOB_LICENSES", ""),
            ("IPUOF_CONFIG_PATH", "/etc/ipuof.conf.d/pod16_a01.conf"),
        ])
        .env("SLURM_CONF", folder.path().join("slurm.conf"))
        .output()
        .unwrap();
    let mut lines: Vec<String> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    let selecting = ["GCD_ID", "HOST", "PARTITION_ID", "PORT", "TIMEOUT"];
    let mut expected = vec!["unset IPUOF_CONFIG_PATH".to_owned()];
    expected.extend(selecting.map(|name| format!("unset IPUOF_VIPU_API_{name}")));
    assert_eq!(lines, expected);
}
