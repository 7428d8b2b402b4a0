//! Hooks of static partitions against the scripts of Graphcore's guide, as processes without a Slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{print_row, time};

/// Name of the node.
const NODE: &str = "ipu-host-1";

/// The Prolog of the guide (listing 8.8), corrected: it chooses under the lock, uses absolute paths and
/// drains no node.
pub(crate) const GUIDE_PROLOG: &str = r#"#!/bin/bash
DATA=@DATA@
exec 9>>"$DATA/allocation.lock"
flock 9
PARTITION=$(ls -1 "$DATA/free" | head -1)
[ -z "$PARTITION" ] && exit 0
mv "$DATA/free/$PARTITION" "$DATA/allocated/$PARTITION"
echo "$PARTITION" >"$DATA/p$SLURM_JOB_ID"
"#;

/// The Epilog of the guide (listing 8.9), corrected.
pub(crate) const GUIDE_EPILOG: &str = r#"#!/bin/bash
DATA=@DATA@
exec 9>>"$DATA/allocation.lock"
flock 9
POINTER=$DATA/p$SLURM_JOB_ID
[ -f "$POINTER" ] || exit 0
PARTITION=$(cat "$POINTER")
mv "$DATA/allocated/$PARTITION" "$DATA/free/$PARTITION"
rm -f "$POINTER"
"#;

/// The TaskProlog of the guide (listing 8.10).
const GUIDE_TASK_PROLOG: &str = r#"#!/bin/sh
echo export IPUOF_VIPU_API_HOST=vipu-host
echo export IPUOF_VIPU_API_PORT=8090
PARTITION="@DATA@/p$SLURM_JOB_ID"
echo "export IPUOF_VIPU_API_PARTITION_ID=$(cat "$PARTITION")"
"#;

/// A folder with the hooks and two pools of two partitions: that of the program and that of the scripts.
struct Hooks {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Hooks {
    fn create(program: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for pool in ["pool", "guide"] {
            create_pool(&root.join(pool));
        }
        let scripts = [
            ("guide-prolog", GUIDE_PROLOG),
            ("guide-epilog", GUIDE_EPILOG),
            ("guide-task-prolog", GUIDE_TASK_PROLOG),
        ];
        for (name, script) in scripts {
            let data = root.join("guide").display().to_string();
            let path = root.join(name);
            fs::write(&path, script.replace("@DATA@", &data)).expect("a script");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        let conf = format!("PoolDir={}/pool\nEveryJobHasOne=1\n", root.display());
        fs::write(root.join("vipu.conf"), conf).expect("a configuration");
        fs::write(root.join("slurm.conf"), "ClusterName=bench\n").expect("a configuration");
        Self {
            folder,
            program: program.to_owned(),
        }
    }

    fn own(&self, name: &str, context: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(name);
        self.prepare(&mut command, context);
        command
    }

    fn guide(&self, name: &str, context: &str) -> Command {
        let mut command = Command::new(self.folder.path().join(name));
        self.prepare(&mut command, context);
        command
    }

    /// Sets the environment of a hook.
    fn prepare(&self, command: &mut Command, context: &str) {
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"))
            .env("SLURM_CLUSTER_NAME", "bench")
            .env("SLURM_JOB_ID", "7")
            .env("SLURM_JOBID", "7")
            .env("SLURM_JOB_UID", "0")
            .env("SLURM_JOB_USER", "root")
            .env("SLURM_JOB_NODELIST", NODE)
            .env("SLURMD_NODENAME", NODE)
            .env("SLURM_PROCID", "0")
            .env("SLURM_LOCALID", "0")
            .env("SLURM_SCRIPT_CONTEXT", context);
    }
}

/// Creates a pool of two free partitions.
pub(crate) fn create_pool(root: &Path) {
    for name in ["free", "allocated"] {
        fs::create_dir_all(root.join(name)).expect("a folder");
    }
    for name in ["a", "b"] {
        let text = format!(
            "# ipu-slurm pool 1 size=2\nIPUOF_VIPU_API_HOST=vipu-host\nIPUOF_VIPU_API_PARTITION_ID={name}\n"
        );
        fs::write(root.join("free").join(name), text).expect("a partition");
    }
}

/// Measures the hooks of a node, with `EveryJobHasOne=1`.
pub(crate) fn measure(program: &Path, pairs: usize) {
    let hooks = Hooks::create(program);
    let (mut own, mut guide) = (Vec::new(), Vec::new());
    let (mut own_task, mut guide_task) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        let prolog = time(hooks.own("prolog", "prolog_slurmd"), "");
        let id = "IPUOF_VIPU_API_PARTITION_ID=a";
        own_task.push(time(hooks.own("task-prolog", "prolog_task"), id));
        own.push(prolog + time(hooks.own("epilog", "epilog_slurmd"), ""));
        let prolog = time(hooks.guide("guide-prolog", "prolog_slurmd"), "");
        guide_task.push(time(hooks.guide("guide-task-prolog", "prolog_task"), id));
        guide.push(prolog + time(hooks.guide("guide-epilog", "epilog_slurmd"), ""));
    }
    print_row("Prolog + Epilog against the guide's scripts", own, guide);
    print_row("TaskProlog against the guide's script", own_task, guide_task);
}
