//! `ipu-slurm render` and `check`: Graphcore's configuration, rendered and loaded by a stock Slurm.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use ipu_test_slurm::{BED, CommandOutput, Daemon, slurm_version};

use crate::cluster::Cluster;

/// The settings of `v-ipu-plugin.conf` in the Slurm guide §8.5.4.
const PLUGIN_CONF: &str = "\
SelectType=select/vipu
SelectTypeParameters=other_cons_tres,CR_CPU
PropagateResourceLimitsExcept=MEMLOCK
VipuIpuofDir=/run/slurm-bed/ipuof
GresTypes=vipu
";
/// Settings of the bed that Graphcore's files do not have in `slurm.conf`.
const NOT_IN_SLURM_CONF: [&str; 9] = [
    "SelectType=",
    "SelectTypeParameters=",
    "GresTypes=",
    "Licenses=",
    "PrologSlurmctld=",
    "EpilogSlurmctld=",
    "TaskProlog=",
    "NodeName=",
    "PartitionName=",
];

/// Replaces the configuration of a stopped cluster by that of Graphcore's plugin, with the nodes of the bed.
fn write_graphcore_files(etc: &Path) {
    let old = fs::read_to_string(etc.join("slurm.conf")).unwrap();
    let (moved, kept): (Vec<&str>, Vec<&str>) = old
        .lines()
        .partition(|line| NOT_IN_SLURM_CONF.iter().any(|key| line.starts_with(key)));
    let slurm_conf = format!("{}\nInclude v-ipu-plugin.conf\n", kept.join("\n"));
    fs::write(etc.join("slurm.conf"), slurm_conf).unwrap();
    let mut plugin = String::from(PLUGIN_CONF);
    for line in moved {
        if line.starts_with("NodeName=") {
            plugin.push_str(&format!("{line} Gres=vipu:pod64:no_consume:64\n"));
        } else if line.starts_with("PartitionName=") {
            plugin.push_str(&format!("{line}\n"));
        }
    }
    fs::write(etc.join("v-ipu-plugin.conf"), plugin).unwrap();
    let vipu_conf = format!("ApiHost=127.0.0.1\nApiPort=8090\nIpuofDir={BED}/ipuof\nMaxIpusPerJob=64\n");
    fs::write(etc.join("vipu.conf"), vipu_conf).unwrap();
    fs::remove_file(etc.join("pod64.conf")).unwrap();
    symlink("vipu.conf", etc.join("pod64.conf")).unwrap();
}

fn run(cluster: &Cluster, command: &str, more: &[&str]) -> CommandOutput {
    let hooks = format!("{BED}/hooks");
    let library = format!("{BED}/files/libspank_vipu.so");
    let mut arguments = vec![command, "--hook-directory", &hooks, "--spank-plugin", &library];
    arguments.extend(more);
    cluster.bed.run(&format!("{hooks}/ipu-slurm"), &arguments)
}

fn stop_slurm(cluster: &mut Cluster) {
    for slurmd in Daemon::slurmds() {
        cluster.bed.stop_daemon(&slurmd);
    }
    cluster.bed.stop_daemon(&Daemon::Slurmctld);
}

fn start_slurm(cluster: &mut Cluster) {
    cluster.bed.start_daemon(Daemon::Slurmctld);
    for slurmd in Daemon::slurmds() {
        cluster.bed.start_daemon(slurmd);
    }
    cluster.bed.wait_until("all nodes are idle", || {
        let states = cluster.bed.node_states();
        states.len() == 4 && states.iter().all(|state| state == "idle")
    });
}

#[test]
fn graphcores_files_run_a_job_on_a_stock_slurm_once_they_are_rendered() {
    let name = "graphcores_files_run_a_job_on_a_stock_slurm_once_they_are_rendered";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    stop_slurm(&mut cluster);
    let etc = cluster.bed.directory().join("etc");
    write_graphcore_files(&etc);
    let refused = cluster.bed.run("sinfo", &[]);
    assert!(
        refused.stderr.contains("unrecognized key: VipuIpuofDir"),
        "{refused:?}"
    );

    // The errors, and no change.
    let before = fs::read_to_string(etc.join("v-ipu-plugin.conf")).unwrap();
    let checked = run(&cluster, "check", &[]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(
        checked
            .stdout
            .contains("error: v-ipu-plugin.conf:1:12: SelectType = select/vipu: "),
        "{checked:?}"
    );
    assert_eq!(before, fs::read_to_string(etc.join("v-ipu-plugin.conf")).unwrap());

    let in_place = run(&cluster, "render", &["--output", "/etc/slurm"]);
    assert!(in_place.stderr.contains("use another directory"), "{in_place:?}");
    let rendered = run(&cluster, "render", &["--output", &format!("{BED}/rendered")]);
    assert!(rendered.success, "{rendered:?}");
    assert!(
        rendered.stderr.contains("note: restart slurmctld"),
        "{rendered:?}"
    );
    for entry in fs::read_dir(cluster.bed.directory().join("rendered")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, etc.join(path.file_name().unwrap())).unwrap();
    }
    let checked = run(&cluster, "check", &[]);
    assert_eq!(
        (checked.code, checked.stdout.as_str()),
        (Some(0), ""),
        "{checked:?}"
    );

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for script in ["ipu_slurm.lua", "job_submit.lua"] {
        fs::copy(root.join("deploy/slurm").join(script), etc.join(script)).unwrap();
    }
    let without_plugin = run(&cluster, "doctor", &[]);
    let missing = "error: srun --help has no --ipus (";
    assert!(without_plugin.stdout.starts_with(missing), "{without_plugin:?}");
    let library = std::env::current_exe()
        .unwrap()
        .with_file_name("libspank_vipu.so");
    fs::copy(library, cluster.bed.directory().join("files/libspank_vipu.so")).unwrap();
    start_slurm(&mut cluster);

    let job = cluster.submit(
        &["--ipus=4"],
        "env | grep ^IPUOF_; echo started; exec tail -f /dev/null",
    );
    cluster.wait_for_line(&job, "started");
    let ledger = cluster.ledger();
    assert_eq!((ledger.len(), &ledger[0]["size"]), (1, &4.into()), "{ledger:?}");
    let id = ledger[0]["id"].as_str().unwrap();
    let line = format!("IPUOF_VIPU_API_PARTITION_ID={id}\n");
    assert!(cluster.output(&job).contains(&line), "{}", cluster.output(&job));
    assert_eq!(
        cluster.job_value(&job, "Licenses").split(' ').next(),
        Some("pod64:4")
    );
    // The GRES of a node counts nothing: the licenses do.
    let options = ["--parsable", "--gres=vipu:pod64:8", "-o/dev/null"];
    let gres = cluster.submit(&options, "exec tail -f /dev/null");
    cluster.bed.wait_until("the job with GRES runs", || {
        cluster.job_value(&gres, "JobState").starts_with("RUNNING")
    });
    let detail = cluster
        .bed
        .succeed("scontrol", &["-d", "-o", "show", "job", &gres]);
    assert!(detail.contains("GRES=vipu:pod64(CNT:0)"), "{detail}");
    cluster.bed.succeed("scancel", &[&gres]);
    cluster.wait_for_end(&gres);
    cluster.bed.succeed("scancel", &[&job]);
    cluster.wait_for_end(&job);

    let large = cluster.bed.run("sbatch", &["--ipus=128", "--wrap", "true"]);
    assert!(
        large.stderr.contains("at most 64 IPUs of pod64 (MaxIpusPerJob)"),
        "{large:?}"
    );
    cluster.assert_nothing_left();
}

/// Splits the configuration of a stopped cluster, with other licenses and defaults.
fn write_split_files(etc: &Path) {
    let old = fs::read_to_string(etc.join("slurm.conf")).unwrap();
    let lines_of = |keys: &[&str]| -> String {
        let lines = old
            .lines()
            .filter(|line| keys.iter().any(|key| line.starts_with(key)));
        lines.map(|line| format!("{line}\r\n")).collect()
    };
    let moved = [
        "Licenses=",
        "PrologSlurmctld=",
        "EpilogSlurmctld=",
        "TaskProlog=",
        "NodeName=",
        "PartitionName=",
    ];
    let kept: String = old
        .lines()
        .filter(|line| !moved.iter().any(|key| line.starts_with(key)))
        .map(|line| format!("{line}\n"))
        .collect();
    let main = format!("{kept}Include hooks.conf\nInclude %c.conf\nInclude nodes.conf\n");
    fs::write(etc.join("slurm.conf"), main).unwrap();
    fs::write(etc.join("hooks.conf"), lines_of(&moved[1..4])).unwrap();
    let mut licenses = b"# f\xfcr\nLicenses=matlab:4;pod64:32,ansys:0,\\\nmatlab:2,pod64:8\n".to_vec();
    licenses.extend(b"PrologEpilogTimeout=30\n");
    fs::write(etc.join("testbed.conf"), licenses).unwrap();
    let nodes = lines_of(&moved[4..]);
    let nodes = nodes
        .replace(" CPUs=16", "")
        .replace(" OverSubscribe=EXCLUSIVE", "");
    fs::write(
        etc.join("nodes.conf"),
        format!("NodeName=DEFAULT CPUs=16\n{nodes}"),
    )
    .unwrap();
}

#[test]
fn a_split_configuration_keeps_its_lines_and_slurm_reads_the_rendered_one() {
    let name = "a_split_configuration_keeps_its_lines_and_slurm_reads_the_rendered_one";
    let Some(mut cluster) = Cluster::start(name, 60) else {
        return;
    };
    stop_slurm(&mut cluster);
    let etc = cluster.bed.directory().join("etc");
    write_split_files(&etc);
    let more = ["--ipus=pod64=64", "--output", &format!("{BED}/rendered")];
    let rendered = run(&cluster, "render", &more);
    assert!(rendered.success, "{rendered:?}");
    let directory = cluster.bed.directory().join("rendered");
    assert!(!directory.join("hooks.conf").exists() && !directory.join("nodes.conf").exists());
    for name in ["slurm.conf", "testbed.conf", "ipu_limits.lua"] {
        fs::copy(directory.join(name), etc.join(name)).unwrap();
    }
    let checked = run(&cluster, "check", &more[..1]);
    assert!(checked.success, "{checked:?}");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for script in ["ipu_slurm.lua", "job_submit.lua"] {
        fs::copy(root.join("deploy/slurm").join(script), etc.join(script)).unwrap();
    }
    start_slurm(&mut cluster);

    let licenses = cluster.bed.succeed("scontrol", &["-o", "show", "licenses"]);
    // Slurm 26.05 lists no license of which there are 0.
    let none = (slurm_version().unwrap() < 2605).then_some("ansys Total=0 ");
    for license in ["matlab Total=6 ", "pod64 Total=64 "].into_iter().chain(none) {
        assert!(licenses.contains(&format!("LicenseName={license}")), "{licenses}");
    }
    let config = cluster.bed.succeed("scontrol", &["show", "config"]);
    assert!(config.contains("PrologEpilogTimeout     = 120\n"), "{config}");
    let log = fs::read_to_string(cluster.bed.directory().join("log/slurmctld.log")).unwrap();
    assert!(!log.contains("specified more than once"), "{log}");
    let job = cluster.submit(&["--licenses=pod64:4;matlab:1"], "env | grep ^IPUOF_; echo done");
    cluster.wait_for_line(&job, "done");
    assert!(cluster.output(&job).contains("IPUOF_VIPU_API_PARTITION_ID="));
    cluster.wait_for_end(&job);
    cluster.assert_nothing_left();
}

#[test]
fn the_typo_pod6_is_refused_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("slurm.conf", "Include v-ipu-plugin.conf\n");
    write("v-ipu-plugin.conf", "NodeName=n1 Gres=vipu:pod6:no_consume:64\n");
    write("vipu.conf", "ApiHost=pod\nIpuofDir=/home/ipuof\n");
    symlink("vipu.conf", directory.path().join("pod64.conf")).unwrap();
    for command in ["check", "render"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_ipu-slurm"))
            .args([command, "--slurm-version=24.11", "--directory"])
            .arg(directory.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            String::from_utf8(output.stderr).unwrap(),
            "error: v-ipu-plugin.conf:1:18: Gres = vipu:pod6:no_consume:64: the model pod6 has no file pod6.conf; \
             did you mean pod64?\n"
        );
    }
}
