//! The machine of a node: network, mount, process and control-group namespaces of its own. When its first
//! process dies, the kernel kills all other processes and removes mounts and network.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::geteuid;

use crate::error::ClusterError;
use crate::image;
use crate::options::ClusterLifetime;
use crate::process::Server;
use crate::ready::{run, wait};

/// The init process: it sets up the machine, writes the ready file `$1`, and reaps zombies.
const INIT_SCRIPT: &str = r#"
set -e
mount --make-rshared /
mkdir -p /var/lib/cni
for folder in /run /var/log /var/lib/cni; do mount -t tmpfs tmpfs "$folder"; done
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready >"$1"
while :; do sleep 86400 & wait; done
"#;

/// Packets that leave the node use its own address.
const MASQUERADE: &str = "table ip machine { chain leaving { type nat hook postrouting priority srcnat; oifname node0 masquerade; }\n}";

/// Debian's folder of network plugins.
pub(crate) const PLUGINS: &str = "/usr/lib/cni";

/// Required Debian packages besides the programs built here, with one program of each.
const PACKAGES: [(&str, &str); 5] = [
    ("util-linux", "unshare"),
    ("util-linux", "nsenter"),
    ("iproute2", "ip"),
    ("nftables", "nft"),
    ("runc", "runc"),
];

/// Base address in the range reserved for benchmarks (RFC 2544); four addresses per machine.
const RANGE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const MAX_MACHINES: u32 = 1 << 15;

/// Maximum attempts to remove the control groups of a machine, whose processes may still be exiting.
const MAX_ATTEMPTS: u32 = 1000;

pub(crate) struct Machine {
    first: Server,
    address: Ipv4Addr,
    host: Ipv4Addr,
    cgroup: String,
}

/// Checks that this host can run a machine; the error has the reason.
pub(crate) fn check_support() -> Result<(), ClusterError> {
    let unsupported = |reason: String| Err(ClusterError::NoNode(reason));
    if !cfg!(target_os = "linux") || !geteuid().is_root() {
        return unsupported("a node needs root on Linux".into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &str| {
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|folder: PathBuf| folder.join(program).exists())
    };
    for (package, program) in PACKAGES {
        if !found(program) {
            return unsupported(format!("{program} is missing: install the package {package}"));
        }
    }
    if !Path::new(PLUGINS).join("ptp").exists() {
        return unsupported("the package containernetworking-plugins is missing".into());
    }
    if image::busybox().is_none() {
        return unsupported("the package busybox-static is missing".into());
    }
    let mut probe = Command::new("unshare");
    probe.args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]);
    match run(probe) {
        Ok(_) => Ok(()),
        Err(error) => unsupported(format!("cannot create namespaces: {error}")),
    }
}

impl Machine {
    /// Creates a machine with its files in `directory`.
    pub(crate) fn make(directory: &Path, lifetime: ClusterLifetime) -> Result<Self, ClusterError> {
        let ready_file = directory.join("machine-is-ready");
        let arguments = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=SIGKILL",
            "--mount-proc",
            "sh",
            "-c",
            INIT_SCRIPT,
            "first",
        ];
        let mut arguments: Vec<String> = arguments.map(String::from).to_vec();
        arguments.push(ready_file.display().to_string());
        let log = directory.join("logs").join("machine.log");
        let first = Server::start("machine", &[], &find("unshare")?, &arguments, &log, lifetime)?;
        wait(&first, || {
            fs::read_to_string(&ready_file).map(|text| {
                (
                    if text.is_empty() { 503 } else { 200 },
                    "the machine is starting".into(),
                )
            })
        })?;
        let (address, host) = connect_to_host(first.pid())?;
        let cgroup = format!("{}{}-{}", CGROUPS, std::process::id(), first.pid());
        make_cgroups(&cgroup)?;
        Ok(Self {
            first,
            address,
            host,
            cgroup,
        })
    }

    /// Returns the machine's address, which Pods on it and processes outside can reach.
    pub(crate) const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the address of the host.
    pub(crate) const fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// Returns the control group of all its Pods.
    pub(crate) fn cgroup(&self) -> &str {
        &self.cgroup
    }

    pub(crate) const fn first(&self) -> &Server {
        &self.first
    }

    /// Returns a command prefix that enters only the network namespace.
    pub(crate) fn network(&self) -> Vec<String> {
        vec![
            "nsenter".into(),
            format!("--net=/proc/{}/ns/net", self.first.pid()),
        ]
    }

    /// Kills all processes of the machine.
    pub(crate) fn end(self) {
        self.first.kill();
        remove_cgroups(&self.cgroup);
    }
}

/// Returns a command prefix that runs inside the machine whose first process is `pid`; programs in `folder`
/// take precedence.
pub(crate) fn inside(pid: i32, folder: &Path) -> Vec<String> {
    vec![
        "nsenter".into(),
        format!("--net=/proc/{pid}/ns/net"),
        format!("--mount=/proc/{pid}/ns/mnt"),
        // The init process itself is in its parent's PID namespace; its children are in the new one.
        format!("--pid=/proc/{pid}/ns/pid_for_children"),
        "env".into(),
        format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()),
    ]
}

/// Prefix of control-group names of machines, followed by the id of the creating process.
pub(crate) const CGROUPS: &str = "ipu-test-";

/// Returns the control-group hierarchies: one in version 2, one per controller in version 1.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_owned()];
    }
    let entries = fs::read_dir(root).map(|entries| entries.flatten().map(|entry| entry.path()));
    entries.map_or_else(|_| Vec::new(), Iterator::collect)
}

fn make_cgroups(name: &str) -> Result<(), ClusterError> {
    for hierarchy in hierarchies() {
        // Version 2 requires delegated controllers; where delegation is not permitted, they are already
        // delegated.
        let _ = fs::write(
            hierarchy.join("cgroup.subtree_control"),
            "+cpu +cpuset +memory +pids +io",
        );
        let folder = hierarchy.join(name);
        fs::create_dir_all(&folder)
            .map_err(|error| ClusterError::step(format!("make {}", folder.display()), error))?;
        // Version 1 does not inherit these, and runs no process without them.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (hierarchy.join(file), folder.join(file));
            if let (true, Ok(text)) = (to.exists(), fs::read_to_string(from)) {
                let _ = fs::write(to, text);
            }
        }
    }
    Ok(())
}

/// Removes the control groups of a machine whose processes have ended.
pub(crate) fn remove_cgroups(name: &str) {
    for hierarchy in hierarchies() {
        let folder = hierarchy.join(name);
        for _ in 0..MAX_ATTEMPTS {
            if !folder.exists() {
                break;
            }
            remove_folders(&folder);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Removes a folder tree, the innermost folder first.
fn remove_folders(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_folders(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Removes the control groups of machines whose creator has ended.
pub(crate) fn sweep_cgroups() {
    for hierarchy in hierarchies() {
        for entry in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let creator = name.strip_prefix(CGROUPS).and_then(|rest| rest.split('-').next());
            if creator.is_some_and(|creator| !Path::new("/proc").join(creator).exists()) {
                remove_folders(&entry.path());
            }
        }
    }
}

/// Connects the machine's network to the host by a veth pair without forwarding: the node has no route out.
fn connect_to_host(pid: i32) -> Result<(Ipv4Addr, Ipv4Addr), ClusterError> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let pid = pid.to_string();
    let mut last_error = ClusterError::step("create a network", "no address is free");
    for _ in 0..64 {
        let next = NUMBER.fetch_add(1, Ordering::Relaxed);
        let number = (std::process::id().wrapping_mul(61) + next) % MAX_MACHINES;
        let link = format!("ipu{number}");
        let base = u32::from(RANGE) + 4 * number;
        let (host, address) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let added = ip(&[
            "link", "add", "name", &link, "type", "veth", "peer", "name", "node0", "netns", &pid,
        ]);
        if let Err(error) = added {
            // Another machine uses this name.
            last_error = error;
            continue;
        }
        ip(&["addr", "add", &format!("{host}/30"), "dev", &link])?;
        ip(&["link", "set", &link, "up"])?;
        let network = format!("--net=/proc/{pid}/ns/net");
        for arguments in [
            vec!["ip", "addr", "add", &format!("{address}/30"), "dev", "node0"],
            vec!["ip", "link", "set", "node0", "up"],
            // No gateway exists there, but Service addresses need a route before they are rewritten.
            vec!["ip", "route", "add", "default", "dev", "node0"],
            // The host has a route to the node but not to its Pods.
            vec!["nft", MASQUERADE],
        ] {
            let mut command = Command::new("nsenter");
            command.arg(&network).args(arguments);
            run(command)?;
        }
        return Ok((address, host));
    }
    Err(last_error)
}

fn ip(arguments: &[&str]) -> Result<String, ClusterError> {
    let mut command = Command::new("ip");
    command.args(arguments);
    run(command)
}

fn find(program: &str) -> Result<PathBuf, ClusterError> {
    ["/usr/bin", "/bin"]
        .into_iter()
        .map(|folder| Path::new(folder).join(program))
        .find(|path| path.exists())
        .ok_or_else(|| ClusterError::step("find a program", format!("{program} is not installed")))
}
