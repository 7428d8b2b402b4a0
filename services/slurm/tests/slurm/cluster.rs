//! A Slurm whose jobs get IPUs from a proxy with a simulated Pod64.

mod api;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use clap::Parser;
use ipu_test_slurm::{BED, Bed, BedOptions, Daemon, Hook, bed, this_program};
use serde_json::Value;
use vipu_proxy::{Proxy, Settings};

/// Environment variable that runs a copy of this test program as a proxy with these arguments.
pub(crate) const PROXY_ARGUMENTS: &str = "IPU_SLURM_TEST_PROXY";
/// Name of the test that is the body of this process.
pub(crate) const PROXY_TEST: &str = "cluster::a_proxy_serves_in_a_process_of_its_own";
/// Socket of the proxy in its bed, which admits SlurmUser and root.
pub(crate) const PROXY_SOCKET: &str = "/run/vipu-proxy/socket";

/// Runs a command as SlurmUser.
const AS_SLURM_USER: [&str; 4] = ["setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups"];

/// Links to the program.
const HOOKS: [&str; 3] = ["prolog-slurmctld", "epilog-slurmctld", "task-prolog"];

/// A running cluster.
pub(crate) struct Cluster {
    pub(crate) bed: Bed,
    /// Options of `curl` for requests to the proxy.
    to_proxy: [String; 2],
    proxy: Option<Daemon>,
    agent: Option<Daemon>,
}

impl Cluster {
    /// Starts a cluster whose hooks wait for at most `wait` seconds; none if this machine has no Slurm.
    pub(crate) fn start(test: &str, wait: u32) -> Option<Self> {
        Self::start_with(test, wait, "", BedOptions::new())
    }

    /// Starts a cluster with the options of the SPANK plugin, which the scripts turn into licenses.
    pub(crate) fn start_with_plugin(test: &str) -> Option<Self> {
        Self::start_with_plugin_and(test, BedOptions::new())
    }

    /// Starts a cluster with the SPANK plugin and more options.
    pub(crate) fn start_with_plugin_and(test: &str, options: BedOptions) -> Option<Self> {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/slurm");
        let library = std::env::current_exe()
            .unwrap()
            .with_file_name("libspank_vipu.so");
        let options = options
            .spank_plugin("optional", &library)
            .job_submit_lua(&deploy.join("job_submit.lua"))
            .copy("etc/ipu_slurm.lua", &deploy.join("ipu_slurm.lua"))
            .copy("etc/ipu_limits.lua", &deploy.join("ipu_limits.lua"))
            .node_gres("vipu:pod64:no_consume:64");
        Self::start_with(test, 60, "", options)
    }

    /// Starts a cluster with more options, and more lines for `vipu.conf`.
    pub(crate) fn start_with(
        test: &str,
        wait: u32,
        vipu_lines: &str,
        mut options: BedOptions,
    ) -> Option<Self> {
        let hook = |name: &str| format!("{BED}/hooks/{name}");
        let vipu_conf = format!("Proxy=unix:{PROXY_SOCKET}\nWaitInProlog={wait}\n{vipu_lines}");
        let pod64 = format!("ApiHost=127.0.0.1\nApiPort=8090\nIpuofDir={BED}/ipuof\n");
        for name in HOOKS {
            options = options.text(&format!("hooks/{name}"), "");
        }
        let options = options
            .licenses("pod64:64,other:8")
            .requeue_delay_seconds(11)
            .copy("hooks/ipu-slurm", Path::new(env!("CARGO_BIN_EXE_ipu-slurm")))
            .text("etc/vipu.conf", &vipu_conf)
            .text("etc/pod64.conf", &pod64)
            .hook_program(Hook::PrologSlurmctld, &hook("prolog-slurmctld"))
            .hook_program(Hook::EpilogSlurmctld, &hook("epilog-slurmctld"))
            .hook_program(Hook::TaskProlog, &hook("task-prolog"));
        let bed = bed(test, options)?;
        // slurmctld checked the paths of the placeholders when it started.
        for name in HOOKS {
            let path = bed.directory().join("hooks").join(name);
            fs::remove_file(&path).unwrap();
            symlink("ipu-slurm", path).unwrap();
        }
        for directory in ["/run/vipu-proxy", &format!("{BED}/proxy")] {
            bed.succeed("install", &["-d", "-o", "slurm", directory]);
        }
        bed.succeed("install", &["-d", "-o", "slurm", &format!("{BED}/ipuof")]);
        let mut cluster = Self {
            bed,
            to_proxy: ["--unix-socket".into(), PROXY_SOCKET.into()],
            proxy: None,
            agent: None,
        };
        cluster.start_proxy();
        Some(cluster)
    }

    /// Starts the proxy, with the ledger and the simulated hardware of an earlier one.
    pub(crate) fn start_proxy(&mut self) {
        self.launch_proxy();
        self.wait_for_proxy();
    }

    /// Waits until the proxy serves.
    pub(crate) fn wait_for_proxy(&self) {
        self.bed
            .wait_until("the proxy is ready", || self.try_get("/readyz").is_some());
    }

    /// Starts the proxy like [`start_proxy`](Self::start_proxy), and does not wait until it is ready.
    pub(crate) fn launch_proxy(&mut self) {
        let arguments = format!(
            "--sim pod64 --sim-listen 127.0.0.1:8090 --sim-state {BED}/proxy/sim --sim-delay-ms 0 \
             --store file:{BED}/proxy/ledger.db --listen unix:{PROXY_SOCKET}"
        );
        self.launch_proxy_with(&arguments, &AS_SLURM_USER);
    }

    /// Uses a proxy at a port of the bed, which needs no token.
    pub(crate) fn use_proxy_at(&mut self, port: u16) {
        self.to_proxy = ["--connect-to".into(), format!("::127.0.0.1:{port}")];
        let path = self.bed.directory().join("etc/vipu.conf");
        let text = fs::read_to_string(&path).unwrap();
        let address = format!("Proxy=http://127.0.0.1:{port}\n");
        fs::write(
            path,
            text.replace(&format!("Proxy=unix:{PROXY_SOCKET}\n"), &address),
        )
        .unwrap();
    }

    /// Starts a proxy with these arguments; `words` are a command that runs it.
    fn launch_proxy_with(&mut self, arguments: &str, words: &[&str]) {
        let arguments = format!("{PROXY_ARGUMENTS}={arguments}");
        let program = this_program();
        let own = ["env", &arguments, &program, PROXY_TEST, "--exact", "--nocapture"];
        self.proxy = Some(self.bed.start_program("proxy", &[words, &own].concat()));
    }

    /// Replaces a hook by a script of `sh`.
    pub(crate) fn replace_hook(&self, hook: &str, script: &str) {
        let path = self.bed.directory().join("hooks").join(hook);
        let new = path.with_extension("new");
        fs::write(&new, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// Replaces a command of Slurm in the bed by a script of `sh`, which finds the real one as `$real`.
    pub(crate) fn wrap_command(&self, command: &str, script: &str) {
        let directory = self.bed.directory().join("files");
        fs::create_dir_all(&directory).unwrap();
        let text = format!("#!/bin/sh\nreal={BED}/files/{command}\n{script}\n");
        fs::write(directory.join(format!("{command}.sh")), text).unwrap();
        // Only the bed sees the mount.
        let replace = format!(
            "cp /usr/bin/{command} {BED}/files/{command}; chmod 755 {BED}/files/{command}.sh; \
             mount --bind {BED}/files/{command}.sh /usr/bin/{command}"
        );
        self.bed.succeed("sh", &["-ec", &replace]);
    }

    /// Kills the proxy.
    pub(crate) fn kill_proxy(&mut self) {
        let proxy = self.proxy.take().unwrap();
        self.bed.kill_daemon(&proxy);
    }

    /// Starts the proxy again with an empty ledger.
    pub(crate) fn lose_ledger(&mut self) {
        self.kill_proxy();
        self.remove_ledger();
        self.start_proxy();
    }

    /// Removes the ledger of a proxy that does not run.
    pub(crate) fn remove_ledger(&self) {
        for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
            let _ = fs::remove_file(self.bed.directory().join("proxy").join(name));
        }
    }

    /// Starts the agent as SlurmUser.
    pub(crate) fn start_agent(&mut self) {
        self.start_agent_as("agent");
    }

    /// Starts an agent whose log has this name.
    pub(crate) fn start_agent_as(&mut self, name: &str) {
        let program = format!("{BED}/hooks/ipu-slurm");
        let words = [&AS_SLURM_USER[..], &[program.as_str(), "agent"]].concat();
        self.agent = Some(self.bed.start_program(name, &words));
    }

    /// Waits until the agent that was started has printed a line with `text`.
    pub(crate) fn wait_for_agent(&self, text: &str) {
        let log = self.bed.directory().join("log/agent.out");
        self.bed
            .wait_until(&format!("the agent has printed {text:?}"), || {
                fs::read_to_string(&log).is_ok_and(|log| log.contains(text))
            });
    }

    /// Kills the agent.
    pub(crate) fn kill_agent(&mut self) {
        let agent = self.agent.take().unwrap();
        self.bed.kill_daemon(&agent);
    }

    /// Runs one pass of the agent as SlurmUser.
    pub(crate) fn collect(&self) {
        let mut gc = self.bed.command_as("slurm", &format!("{BED}/hooks/ipu-slurm"));
        let output = gc.arg("gc").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Submits a batch job of an ordinary user and returns its id. Its output goes to `work/<id>.out`.
    pub(crate) fn submit(&self, options: &[&str], script: &str) -> String {
        self.submit_with(&[], options, script)
    }

    /// Submits a batch job from an environment with these `NAME=value`.
    pub(crate) fn submit_with(&self, variables: &[String], options: &[&str], script: &str) -> String {
        let mut sbatch = self.bed.command_as("daemon", "env");
        sbatch.args(variables);
        sbatch.args(["sbatch", "--parsable", "-o", &format!("{BED}/work/%j.out")]);
        let output = sbatch.args(options).args(["--wrap", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Returns what a job has printed.
    pub(crate) fn output(&self, job: &str) -> String {
        fs::read_to_string(self.bed.directory().join(format!("work/{job}.out"))).unwrap_or_default()
    }

    /// Waits until a job has printed a line that begins with `prefix`, and returns the rest of it.
    pub(crate) fn wait_for_line(&self, job: &str, prefix: &str) -> String {
        self.bed.wait_for(&format!("job {job} has printed {prefix}"), || {
            let output = self.output(job);
            output
                .lines()
                .find_map(|line| line.strip_prefix(prefix).map(str::to_owned))
        })
    }

    /// Waits until a job has left the queue of Slurm.
    pub(crate) fn wait_for_end(&self, job: &str) {
        self.bed.wait_until(&format!("job {job} has ended"), || {
            !self.bed.job_ids().contains(&job.to_owned())
        });
    }

    /// Returns the value of a key of `scontrol show job`.
    pub(crate) fn job_value(&self, job: &str, key: &str) -> String {
        let text = self.bed.run("scontrol", &["show", "job", job]).stdout;
        let prefix = format!("{key}=");
        let from = text.find(&prefix).map(|at| at + prefix.len());
        let line = from.and_then(|from| text[from..].lines().next());
        line.unwrap_or_default().trim_end().to_owned()
    }

    /// Starts slurmctld after a kill, and waits until it answers.
    pub(crate) fn start_slurmctld(&mut self) {
        self.bed.start_daemon(Daemon::Slurmctld);
        self.bed.wait_until("slurmctld answers", || {
            self.bed.run("scontrol", &["ping"]).stdout.contains(" UP")
        });
    }

    /// Waits until slurmctld has saved the present state of a job and of all nodes, so that a kill does not
    /// lose it. slurmctld saves the nodes after the jobs.
    pub(crate) fn wait_for_saved_state(&self, job: &str) {
        let state = self.bed.directory().join("state");
        let modified = |file| {
            fs::metadata(state.join(file))
                .and_then(|data| data.modified())
                .ok()
        };
        let before = ["job_state", "node_state"].map(|file| (file, modified(file)));
        for object in ["NodeName=ALL", &format!("JobId={job}")] {
            self.bed.succeed("scontrol", &["update", object, "Comment=saved"]);
        }
        self.bed
            .wait_until("slurmctld has saved the job and the nodes", || {
                before.iter().all(|(file, before)| modified(file) != *before)
            });
    }

    /// Waits until a partition is released. Meanwhile no process with this command line may outlive it.
    pub(crate) fn wait_for_release(&self, id: &str, process: &str) {
        self.bed.wait_until(&format!("{id} is released"), || {
            let is_held = self.ledger().iter().any(|entry| entry["id"] == id);
            let runs = self.bed.run("pgrep", &["-f", process]).success;
            assert!(is_held || !runs, "released while {process} runs");
            !is_held
        });
    }

    /// Returns the licenses of all reservations as Slurm prints them.
    pub(crate) fn reserved(&self) -> String {
        let text = self.bed.run("scontrol", &["-o", "show", "reservation"]).stdout;
        let licenses = text.split(' ').filter(|word| word.starts_with("Licenses="));
        licenses.collect::<Vec<_>>().join(" ")
    }

    /// Returns the names of the files in IpuofDir.
    pub(crate) fn files(&self) -> Vec<String> {
        let directory: PathBuf = self.bed.directory().join("ipuof");
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Runs the agent until nothing is left. EpilogSlurmctld leaves the file of a run with several starts,
    /// and a killed PrologSlurmctld its partition.
    pub(crate) fn collect_until_nothing_is_left(&self) {
        self.bed.wait_until("the agent has released all", || {
            self.collect();
            self.holds_nothing()
        });
        self.assert_nothing_left();
    }

    /// Waits until the running agent has released all.
    pub(crate) fn wait_until_nothing_is_left(&self) {
        self.bed
            .wait_until("the agent has released all", || self.holds_nothing());
        self.assert_nothing_left();
    }

    fn holds_nothing(&self) -> bool {
        self.ledger().is_empty() && self.hardware().is_empty() && self.files().is_empty()
    }

    /// Checks that nothing is left: no partition, no file, no node that is not idle.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.ledger(), Vec::<Value>::new(), "{}", self.bed.logs());
        assert_eq!(self.hardware(), Vec::<String>::new());
        assert_eq!(self.files(), Vec::<String>::new());
        self.bed.wait_until("all nodes are idle", || {
            self.bed.node_states().iter().all(|state| state == "idle")
        });
    }
}

/// The settings of a proxy.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
}

/// The body of the process that the bed starts as its proxy.
#[test]
fn a_proxy_serves_in_a_process_of_its_own() {
    let Ok(arguments) = std::env::var(PROXY_ARGUMENTS) else {
        return;
    };
    let words = std::iter::once("vipu-proxy").chain(arguments.split_whitespace());
    let config = Arguments::parse_from(words).settings.check().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let proxy = Proxy::start(config).await.unwrap();
        println!("vipu-proxy serves on {}", proxy.addr());
        std::future::pending::<()>().await;
    });
}
