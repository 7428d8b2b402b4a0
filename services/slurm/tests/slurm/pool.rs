//! Static partitions (option 2): Prolog, Epilog and TaskProlog on the nodes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ipu_test_slurm::{BED, Bed, BedOptions, Hook, NODES, bed};

use crate::matrix::way::PROLOG_FLAGS;

/// The Prolog of Graphcore's guide (listing 8.8), corrected: it chooses, moves and writes under one lock,
/// uses absolute paths, frees everything after a boot, and drains no node.
const GUIDE_PROLOG: &str = r#"#!/bin/sh
export PATH=/usr/bin:/bin
DATA=/run/slurm-bed/work/pool-$SLURMD_NODENAME
exec 9>>"$DATA/allocation.lock"
flock 9
BOOT=$(cat /proc/sys/kernel/random/boot_id)
if [ -f "$DATA/boot_id" ] && [ "$(cat "$DATA/boot_id")" != "$BOOT" ]; then
  rm -f "$DATA"/p[0-9]*
  for FILE in "$DATA"/allocated/*; do [ -f "$FILE" ] && mv "$FILE" "$DATA/free/"; done
fi
echo "$BOOT" >"$DATA/boot_id"
PARTITION=$(ls -1 "$DATA/free" | head -1)
[ -z "$PARTITION" ] && exit 0
mv "$DATA/free/$PARTITION" "$DATA/allocated/$PARTITION"
echo "$PARTITION" >"$DATA/p$SLURM_JOB_ID"
"#;

/// The Epilog of the guide (listing 8.9), corrected.
const GUIDE_EPILOG: &str = r#"#!/bin/sh
export PATH=/usr/bin:/bin
DATA=/run/slurm-bed/work/pool-$SLURMD_NODENAME
exec 9>>"$DATA/allocation.lock"
flock 9
POINTER=$DATA/p$SLURM_JOB_ID
[ -f "$POINTER" ] || exit 0
PARTITION=$(cat "$POINTER")
mv "$DATA/allocated/$PARTITION" "$DATA/free/$PARTITION"
rm -f "$POINTER"
"#;

/// Returns a bed whose nodes have these partitions: name and IPUs.
fn bed_with_pools(test: &str, gres: &str, settings: &str, partitions: &[(&str, u32)]) -> Option<Bed> {
    bed_with_hooks(test, gres, settings, partitions, &[])
}

/// Returns a bed in which these scripts replace hooks.
fn bed_with_hooks(
    test: &str,
    gres: &str,
    settings: &str,
    partitions: &[(&str, u32)],
    scripts: &[(Hook, &str)],
) -> Option<Bed> {
    let hook = |name: &str| format!("{BED}/hooks/{name}");
    let mut options = BedOptions::new()
        .line(PROLOG_FLAGS)
        .requeue_delay_seconds(11)
        .node_gres(gres)
        .copy("hooks/ipu-slurm", Path::new(env!("CARGO_BIN_EXE_ipu-slurm")))
        .text(
            "etc/vipu.conf",
            &format!("PoolDir={BED}/work/pool-%n\n{settings}"),
        );
    for (kind, name) in [
        (Hook::Prolog, "prolog"),
        (Hook::Epilog, "epilog"),
        (Hook::TaskProlog, "task-prolog"),
    ] {
        let own = format!("#!/bin/sh\nexec {BED}/hooks/ipu-slurm {name}\n");
        let script = scripts.iter().find(|(replaced, _)| *replaced == kind);
        let script = script.map_or(own, |(_, script)| (*script).to_owned());
        options = options
            .text(&format!("hooks/{name}"), &script)
            .hook_program(kind, &hook(name));
    }
    let bed = bed(test, options)?;
    for node in NODES {
        let root = pool(&bed, node);
        for directory in ["free", "allocated"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for (name, size) in partitions {
            let text = format!(
                "# ipu-slurm pool 1 size={size}\nIPUOF_VIPU_API_HOST=pod\nIPUOF_VIPU_API_PARTITION_ID={name}\n"
            );
            fs::write(root.join("free").join(name), text).unwrap();
        }
    }
    Some(bed)
}

fn pool(bed: &Bed, node: &str) -> PathBuf {
    bed.directory().join(format!("work/pool-{node}"))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Runs a job on one node and returns the lines that its tasks printed.
fn run(bed: &Bed, options: &[&str]) -> Vec<String> {
    let mut arguments = vec!["-w", NODES[0]];
    arguments.extend(options);
    arguments.extend(["sh", "-c", "echo ${IPUOF_VIPU_API_PARTITION_ID:-none}"]);
    let mut lines: Vec<String> = bed
        .succeed("srun", &arguments)
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

fn assert_all_is_free(bed: &Bed, partitions: &[&str]) {
    bed.wait_until("all jobs have ended", || bed.job_ids().is_empty());
    for node in NODES {
        let root = pool(bed, node);
        assert_eq!(names(&root.join("free")), partitions, "{}", bed.logs());
        assert!(!names(&root).iter().any(|name| name.starts_with('p')));
    }
    bed.wait_until("all nodes are idle", || {
        bed.node_states().iter().all(|state| state == "idle")
    });
}

#[test]
fn a_job_has_a_partition_of_the_size_that_it_asked_for() {
    let partitions = [("a1", 1), ("b2", 2), ("c2", 2)];
    let Some(bed) = bed_with_pools(
        "a_job_has_a_partition_of_the_size_that_it_asked_for",
        "vipu:1:1,vipu:2:2",
        "OnePartitionPerTask=1\n",
        &partitions,
    ) else {
        return;
    };
    assert_eq!(run(&bed, &["--gres=vipu:2:1"]), ["b2"]);
    assert_eq!(run(&bed, &["--gres=vipu:1:1"]), ["a1"]);
    assert_eq!(run(&bed, &["-n2", "--gres=vipu:2:2"]), ["b2", "c2"]);
    assert_eq!(run(&bed, &[]), ["none"]);
    assert_all_is_free(&bed, &["a1", "b2", "c2"]);

    // A lost Epilog: Slurm has counted the partition as free.
    let root = pool(&bed, NODES[0]);
    fs::rename(root.join("free/a1"), root.join("allocated/a1")).unwrap();
    fs::write(root.join("p1"), "a1\n").unwrap();
    assert_eq!(run(&bed, &["--gres=vipu:1:1"]), ["a1"]);
    assert_all_is_free(&bed, &["a1", "b2", "c2"]);
}

#[test]
fn a_user_gets_no_partition_by_a_forged_record_or_an_inherited_environment() {
    let Some(bed) = bed_with_pools(
        "a_user_gets_no_partition_by_a_forged_record_or_an_inherited_environment",
        "vipu:1:2",
        "",
        &[("a1", 1), ("b1", 1)],
    ) else {
        return;
    };
    let name = "--job-name=x UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=1 Nice=0 Account=(null) \
                QOS=(null) JobState=RUNNING Reason=None Restarts=0 TimeLimit=1:00 SubmitTime=1 StartTime=1 \
                NodeList=n1 Nodes=n1 CPU_IDs=0 Mem=0 GRES=vipu:1(CNT:1) Licenses=(null) Network=(null)\n\
                JobId=999999 JobName=z";
    assert_eq!(run(&bed, &[name]), ["none"]);
    assert_eq!(run(&bed, &[name, "--gres=vipu:1:1"]), ["a1"]);
    let inherited = "--export=ALL,VIPU_PARTITIONS=1:1";
    assert_eq!(run(&bed, &[inherited]), ["none"]);
    assert_eq!(run(&bed, &[inherited, "--gres=vipu:1:1"]), ["a1"]);
    assert_all_is_free(&bed, &["a1", "b1"]);
}

#[test]
fn a_missing_partition_fails_the_job_and_drains_no_node() {
    let Some(bed) = bed_with_pools(
        "a_missing_partition_fails_the_job_and_drains_no_node",
        "vipu:2:2",
        "EveryJobHasOne=1\n",
        &[("b2", 2)],
    ) else {
        return;
    };
    let first = bed
        .command("srun")
        .args(["-w", NODES[0], "--gres=vipu:2:1", "tail", "-f", "/dev/null"])
        .spawn();
    let mut first = first.unwrap();
    bed.wait_until("the first job has its partition", || {
        pool(&bed, NODES[0]).join("p1").exists()
    });
    let second = bed.run("srun", &["-w", NODES[0], "--gres=vipu:2:1", "true"]);
    assert!(!second.success);
    let text = second.stdout + &second.stderr;
    assert!(
        text.contains("the job needs 1 partition of any size, and the node has 0 free"),
        "{text}"
    );
    bed.succeed("scancel", &["1"]);
    first.wait().unwrap();
    assert_all_is_free(&bed, &["b2"]);
}

/// Runs many jobs of an ordinary user on two partitions, with one hook of the guide and one of this program.
fn run_mixed(test: &str, replaced: Hook, script: &str) {
    let partitions = [("b2", 2), ("c2", 2)];
    let hooks = [(replaced, script)];
    let Some(bed) = bed_with_hooks(test, "vipu:2:2", "EveryJobHasOne=1\n", &partitions, &hooks) else {
        return;
    };
    let mut sbatch = bed.command_as("daemon", "sbatch");
    let output = format!("{BED}/work/%a.out");
    sbatch.args(["--array=1-12", "-w", NODES[0], "--gres=vipu:2:1", "-o", &output]);
    // A job claims its partition by a directory, which no other job can make meanwhile.
    let claim = format!("{BED}/work/claim-$IPUOF_VIPU_API_PARTITION_ID");
    let wrap = format!("mkdir {claim} && echo $IPUOF_VIPU_API_PARTITION_ID && rmdir {claim}");
    let submitted = sbatch.args(["--wrap", &wrap]).output().unwrap();
    assert!(submitted.status.success(), "{submitted:?}");
    assert_all_is_free(&bed, &["b2", "c2"]);
    for task in 1..=12 {
        let printed = fs::read_to_string(bed.directory().join(format!("work/{task}.out"))).unwrap();
        assert!(["b2\n", "c2\n"].contains(&printed.as_str()), "{task}: {printed}");
    }
}

#[test]
fn the_prolog_of_the_guide_works_with_our_epilog() {
    let test = "the_prolog_of_the_guide_works_with_our_epilog";
    run_mixed(test, Hook::Prolog, GUIDE_PROLOG);
}

#[test]
fn our_prolog_works_with_the_epilog_of_the_guide() {
    let test = "our_prolog_works_with_the_epilog_of_the_guide";
    run_mixed(test, Hook::Epilog, GUIDE_EPILOG);
}

#[test]
fn a_directory_of_a_user_fails_jobs_with_partitions_and_leads_root_to_no_file() {
    let test = "a_directory_of_a_user_fails_jobs_with_partitions_and_leads_root_to_no_file";
    let Some(bed) = bed_with_pools(test, "vipu:2:1", "", &[("b2", 2)]) else {
        return;
    };
    let secret = bed.directory().join("private/secret");
    fs::write(&secret, "of root").unwrap();
    let root = pool(&bed, NODES[0]);
    bed.succeed("chown", &["daemon", &format!("{BED}/work/pool-{}", NODES[0])]);
    for job in 1..=3 {
        symlink(&secret, root.join(format!(".p{job}.new"))).unwrap();
    }
    let refused = bed.run("srun", &["-w", NODES[0], "--gres=vipu:2:1", "true"]);
    let text = refused.stdout + &refused.stderr;
    let line = format!("pool-{} may be written by others; run chown root", NODES[0]);
    assert!(!refused.success && text.contains(&line), "{text}");
    assert_eq!(run(&bed, &[]), ["none"]);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "of root");
    bed.succeed("chown", &["root", &format!("{BED}/work/pool-{}", NODES[0])]);
    assert_eq!(run(&bed, &["--gres=vipu:2:1"]), ["b2"]);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "of root");
    assert_all_is_free(&bed, &["b2"]);
}

#[test]
fn a_process_that_keeps_the_lock_drains_no_node() {
    let test = "a_process_that_keeps_the_lock_drains_no_node";
    let Some(mut bed) = bed_with_pools(test, "vipu:2:1", "EveryJobHasOne=1\n", &[("b2", 2)]) else {
        return;
    };
    let submit = |bed: &Bed, script: &str| {
        let output = format!("{BED}/work/%j.out");
        bed.succeed(
            "sbatch",
            &["-w", NODES[0], "-o", &output, "--parsable", "--wrap", script],
        )
    };
    let first = submit(&bed, "exec tail -f /dev/null");
    bed.wait_until("the first job has its partition", || {
        pool(&bed, NODES[0]).join("p1").exists()
    });
    let lock = format!("{BED}/work/pool-{}/allocation.lock", NODES[0]);
    let holder = bed.start_program(
        "holder",
        &[
            "flock",
            "-o",
            &lock,
            "sh",
            "-c",
            "echo held; exec tail -f /dev/null",
        ],
    );
    bed.wait_until("the lock is held", || {
        fs::read_to_string(bed.directory().join("log/holder.out")).is_ok_and(|text| text.contains("held"))
    });
    // Its Epilog leaves the partition to the repair of a later Prolog.
    bed.succeed("scancel", &[&first]);
    let second = submit(&bed, "echo started");
    bed.wait_until("both jobs have ended", || bed.job_ids().is_empty());
    let printed = fs::read_to_string(bed.directory().join(format!("work/{second}.out"))).unwrap();
    assert!(
        printed.contains("allocation.lock for 10 s; find it with fuser -v") && !printed.contains("started"),
        "{printed}"
    );
    bed.wait_until("all nodes are idle", || {
        bed.node_states().iter().all(|state| state == "idle")
    });
    bed.kill_daemon(&holder);
    let third = submit(&bed, "echo $IPUOF_VIPU_API_PARTITION_ID");
    assert_all_is_free(&bed, &["b2"]);
    let printed = fs::read_to_string(bed.directory().join(format!("work/{third}.out"))).unwrap();
    assert_eq!(printed, "b2\n");
}

#[test]
fn a_requeued_job_has_partitions_on_all_its_nodes_again() {
    let test = "a_requeued_job_has_partitions_on_all_its_nodes_again";
    let Some(bed) = bed_with_pools(test, "vipu:2:1", "", &[("a2", 2)]) else {
        return;
    };
    let output = bed.directory().join("work/tasks");
    fs::create_dir(&output).unwrap();
    let script = format!(
        "srun sh -c 'echo ${{IPUOF_VIPU_API_PARTITION_ID:-none}} > {BED}/work/tasks/'\
         '$SLURM_RESTART_COUNT-$SLURMD_NODENAME'; exec tail -f /dev/null"
    );
    let nodes = NODES[..2].join(",");
    let options = [
        "--parsable",
        "--requeue",
        "-w",
        &nodes,
        "--gres=vipu:2:1",
        "-o/dev/null",
    ];
    let job = bed.succeed("sbatch", &[&options[..], &["--wrap", &script]].concat());
    let job = job.trim();
    for start in ["", "1"] {
        for node in &NODES[..2] {
            let file = output.join(format!("{start}-{node}"));
            bed.wait_until(&format!("{node} has run a task of start {start:?}"), || {
                fs::read_to_string(&file).is_ok_and(|text| !text.is_empty())
            });
            assert_eq!(fs::read_to_string(&file).unwrap(), "a2\n", "{node} {start:?}");
        }
        if start.is_empty() {
            bed.succeed("scontrol", &["requeue", job]);
        }
    }
    bed.succeed("scancel", &[job]);
    assert_all_is_free(&bed, &["a2"]);
}
