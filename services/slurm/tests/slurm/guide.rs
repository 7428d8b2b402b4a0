//! The guide `docs/slurm.md` on a stock Slurm: its blocks run in order, and print what it shows.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ipu_slurm::conf::ClusterConf;
use ipu_test_slurm::{Bed, BedOptions, Daemon, bed, this_program};

use crate::cluster::{PROXY_ARGUMENTS, PROXY_SOCKET, PROXY_TEST};

/// Fence of a block whose lines after `# ` run as root, and those after `$ ` as an ordinary user.
const FENCE: &str = "```console,slurm";
/// The begin of the only warning about a bed.
const PROCESS_TRACKING: &str = "warning: ProctrackType = proctrack/linuxproc: ";
/// The end of a partition id in the guide; the real one differs.
const ID_END: &str = "m7xqfpg242vffm22";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}

/// A command of a block.
struct GuideCommand {
    is_root: bool,
    text: String,
    /// The lines that the guide shows.
    output: Vec<String>,
}

fn commands(text: &str) -> Vec<GuideCommand> {
    let mut commands: Vec<GuideCommand> = Vec::new();
    let mut is_inside = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") {
            is_inside = line == FENCE;
        } else if let Some(command) = line.strip_prefix("# ").filter(|_| is_inside) {
            commands.push(GuideCommand::new(true, command));
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| is_inside) {
            commands.push(GuideCommand::new(false, command));
        } else if let Some(last) = commands.last_mut().filter(|_| is_inside) {
            last.output.push(line.to_owned());
        }
    }
    commands
}

impl GuideCommand {
    fn new(is_root: bool, command: &str) -> Self {
        Self {
            is_root,
            text: command.to_owned(),
            output: Vec::new(),
        }
    }
}

/// A host with a stock Slurm, whose work directory is the bundle.
struct Host(Bed);

impl Host {
    fn start(test: &str) -> Option<Self> {
        let host = Self(bed(test, BedOptions::new().requeue_delay_seconds(11))?);
        let script = "set -e\n\
             mkdir -p host && mount -t tmpfs tmpfs host && mkdir host/upper host/work\n\
             mount -t overlay -o lowerdir=/usr,upperdir=host/upper,workdir=host/work overlay /usr\n\
             for directory in /home /var/lib /etc/systemd; do\n\
               mkdir -p $directory && mount -t tmpfs -o mode=755 tmpfs $directory\n\
             done\n\
             mkdir /etc/systemd/system\n\
             echo 127.0.0.1 ipu-pod64-001 localhost > hosts && mount --bind hosts /etc/hosts\n";
        host.0.succeed("sh", &["-c", script]);
        let work = host.0.directory().join("work");
        copy_files(&work);
        fs::copy(env!("CARGO_BIN_EXE_ipu-slurm"), work.join("ipu-slurm")).unwrap();
        // This program has the proxy.
        let proxy = work.join("vipu-proxy");
        let program = this_program();
        let script =
            format!("#!/bin/sh\n{PROXY_ARGUMENTS}=\"$*\" exec {program} {PROXY_TEST} --exact --nocapture\n");
        fs::write(&proxy, script).unwrap();
        fs::set_permissions(&proxy, fs::Permissions::from_mode(0o755)).unwrap();
        Some(host)
    }

    /// Starts a V-IPU controller, which is in a proxy of its own.
    fn start_controller(&mut self) {
        let arguments = "--sim pod64 --sim-listen 127.0.0.1:8090 --sim-delay-ms 0 --listen 127.0.0.1:8099";
        let variable = format!("{PROXY_ARGUMENTS}={arguments}");
        let words = [
            "env",
            &variable,
            &this_program(),
            PROXY_TEST,
            "--exact",
            "--nocapture",
        ];
        self.0.start_program("controller", &words);
        self.0.wait_until("the V-IPU controller answers", || {
            let url = "http://ipu-pod64-001:8090/v1/partitions";
            self.0.run("curl", &["-sf", url]).success
        });
    }

    fn run(&mut self, command: &GuideCommand) {
        match command.text.strip_prefix("systemctl ") {
            Some(rest) => match rest.strip_prefix("enable --now ") {
                Some(unit) => self.start_unit(unit),
                None => self.restart_slurm(rest),
            },
            None => self.run_command(command),
        }
    }

    fn run_command(&self, command: &GuideCommand) {
        let mut shell = match command.is_root {
            true => self.0.command("sh"),
            false => self.0.command_as("daemon", "sh"),
        };
        let output = shell.args(["-euc", &command.text]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let shown = format!("{}\n{text}{error}\n{}", command.text, self.0.logs());
        assert!(output.status.success(), "{shown}");
        // A bed has no cgroups; the guide assumes the default of Slurm.
        let lines = text.lines().filter(|line| !line.contains(PROCESS_TRACKING));
        let lines: Vec<String> = lines.map(without_id).collect();
        let expected: Vec<String> = command.output.iter().map(|line| without_id(line)).collect();
        assert_eq!(lines, expected, "{shown}");
    }

    /// Does the work of systemd for a unit of `deploy/slurm`.
    fn start_unit(&mut self, name: &str) {
        let unit = self
            .0
            .succeed("cat", &[&format!("/etc/systemd/system/{name}.service")]);
        let values = |key: &str| {
            let values = unit.lines().filter_map(|line| line.strip_prefix(key));
            values.flat_map(str::split_whitespace).collect::<Vec<_>>()
        };
        let user = values("User=")[0];
        for (key, root) in [("StateDirectory=", "/var/lib"), ("RuntimeDirectory=", "/run")] {
            for directory in values(key) {
                let path = format!("{root}/{directory}");
                self.0.succeed("install", &["-d", "-o", user, &path]);
            }
        }
        let (reuid, regid) = (format!("--reuid={user}"), format!("--regid={user}"));
        let mut words = vec!["setpriv", &reuid, &regid, "--clear-groups", "env"];
        words.extend(values("Environment="));
        words.extend(values("ExecStart="));
        self.0.start_program(name, &words);
        if name == "vipu-proxy" {
            self.0.wait_until("the proxy is ready", || {
                let ready = ["-sf", "--unix-socket", PROXY_SOCKET, "http://proxy/readyz"];
                self.0.run("curl", &ready).success
            });
        }
    }

    fn restart_slurm(&mut self, words: &str) {
        assert_eq!(words, "restart slurmctld slurmd");
        self.0.restart_slurmctld();
        for daemon in Daemon::slurmds() {
            self.0.stop_daemon(&daemon);
            self.0.start_daemon(daemon);
        }
        self.0.wait_until("all nodes are idle", || {
            self.0.node_states().iter().all(|state| state == "idle")
        });
    }
}

/// Copies the files that the bundle has next to the programs.
fn copy_files(target: &Path) {
    for entry in fs::read_dir(repository().join("deploy/slurm")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, target.join(path.file_name().unwrap())).unwrap();
    }
}

/// Removes the end of a partition id.
fn without_id(line: &str) -> String {
    match line.strip_prefix("IPUOF_VIPU_API_PARTITION_ID=") {
        Some(id) => id[..id.len() - ID_END.len()].to_owned(),
        None => line.to_owned(),
    }
}

#[test]
fn the_guide_gives_a_stock_slurm_ipus() {
    let Some(mut host) = Host::start("the_guide_gives_a_stock_slurm_ipus") else {
        return;
    };
    host.start_controller();
    let commands = commands(&read("docs/slurm.md"));
    assert!(commands.len() > 10, "{} commands", commands.len());
    for command in &commands {
        host.run(command);
    }
    host.0.wait_until("the partition is released", || {
        let list = host.0.succeed(
            "curl",
            &["-sf", "--unix-socket", PROXY_SOCKET, "http://proxy/v1/partitions"],
        );
        list.contains("\"partitions\":[]")
    });
}

#[test]
fn the_reference_has_every_setting_once() {
    let unknown = ClusterConf::parse("vipu.conf", "Zzzzzzzzzzzzzzzz=1\n").unwrap_err();
    let text = unknown[0].to_string();
    let (_, keys) = text.split_once("the keys are ").unwrap();
    let known: BTreeSet<&str> = keys.split(", ").collect();
    let page = read("docs/reference/slurm-settings.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let documented: Vec<&str> = rows
        .map(|(key, _)| key)
        .filter(|key| !key.contains('/'))
        .collect();
    let documented: Vec<&str> = documented
        .into_iter()
        .filter(|key| !key.contains(['.', '<']))
        .collect();
    assert_eq!(documented.len(), known.len(), "{documented:?}");
    assert_eq!(documented.into_iter().collect::<BTreeSet<_>>(), known);
}
