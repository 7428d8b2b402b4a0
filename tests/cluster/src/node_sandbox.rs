//! The machine of a node: network, mounts, processes and control groups of its own on this machine. When the first process in
//! it dies, the kernel ends all others and takes mounts and network away.

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

/// The first process: it makes what every machine has, says so in the file `$1`, and reaps.
const FIRST: &str = r#"
set -e
mount --make-rshared /
mkdir -p /var/lib/cni
for folder in /run /var/log /var/lib/cni; do mount -t tmpfs tmpfs "$folder"; done
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready >"$1"
while :; do sleep 86400 & wait; done
"#;

/// What leaves the node comes from its own address.
const MASQUERADE: &str = "table ip machine { chain leaving { type nat hook postrouting priority srcnat; oifname node0 masquerade; }\n}";

/// Where Debian puts the network plugins.
pub(crate) const PLUGINS: &str = "/usr/lib/cni";

/// What has to be installed besides the programs that are built here: Debian's packages, and one program of each.
const PACKAGES: [(&str, &str); 5] = [
    ("util-linux", "unshare"),
    ("util-linux", "nsenter"),
    ("iproute2", "ip"),
    ("nftables", "nft"),
    ("runc", "runc"),
];

/// Addresses from the range that is set aside for benchmarks (RFC 2544): four for each machine.
const RANGE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const MACHINES: u32 = 1 << 15;

/// How often the control groups of a machine are tried to be removed: its processes may still be on their way out.
const TRIES: u32 = 1000;

pub(crate) struct Machine {
    first: Server,
    address: Ipv4Addr,
    host: Ipv4Addr,
    cgroup: String,
}

/// Whether a machine can be made here; otherwise why not.
pub(crate) fn possible() -> Result<(), ClusterError> {
    let impossible = |why: String| Err(ClusterError::NoNode(why));
    if !cfg!(target_os = "linux") || !geteuid().is_root() {
        return impossible("a node needs root on Linux".into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &str| {
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|folder: PathBuf| folder.join(program).exists())
    };
    for (package, program) in PACKAGES {
        if !found(program) {
            return impossible(format!("{program} is missing: install the package {package}"));
        }
    }
    if !Path::new(PLUGINS).join("ptp").exists() {
        return impossible("the package containernetworking-plugins is missing".into());
    }
    if image::busybox().is_none() {
        return impossible("the package busybox-static is missing".into());
    }
    let mut trial = Command::new("unshare");
    trial.args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]);
    match run(trial) {
        Ok(_) => Ok(()),
        Err(error) => impossible(format!("no namespaces can be made: {error}")),
    }
}

impl Machine {
    /// Makes one; its files are in `directory`.
    pub(crate) fn make(directory: &Path, life: ClusterLifetime) -> Result<Self, ClusterError> {
        let said = directory.join("machine-is-ready");
        let arguments = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=SIGKILL",
            "--mount-proc",
            "sh",
            "-c",
            FIRST,
            "first",
        ];
        let mut arguments: Vec<String> = arguments.map(String::from).to_vec();
        arguments.push(said.display().to_string());
        let log = directory.join("logs").join("machine.log");
        let first = Server::start("machine", &[], &find("unshare")?, &arguments, &log, life)?;
        wait(&first, || {
            fs::read_to_string(&said)
                .map(|text| (if text.is_empty() { 503 } else { 200 }, "it is being made".into()))
        })?;
        let (address, host) = connect(first.pid())?;
        let cgroup = format!("{}{}-{}", CGROUPS, std::process::id(), first.pid());
        make_cgroups(&cgroup)?;
        Ok(Self {
            first,
            address,
            host,
            cgroup,
        })
    }

    /// Its address: Kubernetes Pods on it and processes outside reach it there.
    pub(crate) const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The address of the machine outside.
    pub(crate) const fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// The control group that all of its Kubernetes Pods are in.
    pub(crate) fn cgroup(&self) -> &str {
        &self.cgroup
    }

    pub(crate) const fn first(&self) -> &Server {
        &self.first
    }

    /// The command that runs another one in the network alone.
    pub(crate) fn network(&self) -> Vec<String> {
        vec![
            "nsenter".into(),
            format!("--net=/proc/{}/ns/net", self.first.pid()),
        ]
    }

    /// Ends everything in it.
    pub(crate) fn end(self) {
        self.first.kill();
        remove_cgroups(&self.cgroup);
    }
}

/// The command that runs another one inside the machine whose first process is `pid`; programs in `folder` are found first.
pub(crate) fn inside(pid: i32, folder: &Path) -> Vec<String> {
    vec![
        "nsenter".into(),
        format!("--net=/proc/{pid}/ns/net"),
        format!("--mount=/proc/{pid}/ns/mnt"),
        // Its own are those of its parent; those that it made are its children's.
        format!("--pid=/proc/{pid}/ns/pid_for_children"),
        "env".into(),
        format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()),
    ]
}

/// What the names of control groups of machines begin with; the process that made one comes next.
pub(crate) const CGROUPS: &str = "ipu-test-";

/// The folders in which control groups are made: one in version 2, one a controller in version 1.
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
        // Version 2 wants controllers handed down; where that is not allowed, they are already.
        let _ = fs::write(
            hierarchy.join("cgroup.subtree_control"),
            "+cpu +cpuset +memory +pids +io",
        );
        let folder = hierarchy.join(name);
        fs::create_dir_all(&folder)
            .map_err(|error| ClusterError::step(format!("make {}", folder.display()), error))?;
        // Version 1 does not hand these down, and lets nothing run without.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (hierarchy.join(file), folder.join(file));
            if let (true, Ok(text)) = (to.exists(), fs::read_to_string(from)) {
                let _ = fs::write(to, text);
            }
        }
    }
    Ok(())
}

/// Removes the control groups of a machine whose processes were ended.
pub(crate) fn remove_cgroups(name: &str) {
    for hierarchy in hierarchies() {
        let folder = hierarchy.join(name);
        for _ in 0..TRIES {
            if !folder.exists() {
                break;
            }
            remove_folders(&folder);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Removes a folder of folders, the innermost first.
fn remove_folders(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_folders(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

/// Removes the control groups of machines whose makers are no more.
pub(crate) fn sweep_cgroups() {
    for hierarchy in hierarchies() {
        for entry in fs::read_dir(hierarchy).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let maker = name.strip_prefix(CGROUPS).and_then(|rest| rest.split('-').next());
            if maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
                remove_folders(&entry.path());
            }
        }
    }
}

/// Joins the network of this process with the one outside, by a cable that carries nothing further: there is no way out.
fn connect(pid: i32) -> Result<(Ipv4Addr, Ipv4Addr), ClusterError> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let pid = pid.to_string();
    let mut last = ClusterError::step("make a network", "no address was free");
    for _ in 0..64 {
        let next = NUMBER.fetch_add(1, Ordering::Relaxed);
        let number = (std::process::id().wrapping_mul(61) + next) % MACHINES;
        let cable = format!("ipu{number}");
        let base = u32::from(RANGE) + 4 * number;
        let (host, address) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let made = ip(&[
            "link", "add", "name", &cable, "type", "veth", "peer", "name", "node0", "netns", &pid,
        ]);
        if let Err(error) = made {
            // Another machine has it.
            last = error;
            continue;
        }
        ip(&["addr", "add", &format!("{host}/30"), "dev", &cable])?;
        ip(&["link", "set", &cable, "up"])?;
        let network = format!("--net=/proc/{pid}/ns/net");
        for words in [
            vec!["ip", "addr", "add", &format!("{address}/30"), "dev", "node0"],
            vec!["ip", "link", "set", "node0", "up"],
            // Nobody answers there, but addresses of Services need a route before they are rewritten.
            vec!["ip", "route", "add", "default", "dev", "node0"],
            // The machine outside knows the way to the node and not to the Kubernetes Pods on it.
            vec!["nft", MASQUERADE],
        ] {
            let mut command = Command::new("nsenter");
            command.arg(&network).args(words);
            run(command)?;
        }
        return Ok((address, host));
    }
    Err(last)
}

fn ip(words: &[&str]) -> Result<String, ClusterError> {
    let mut command = Command::new("ip");
    command.args(words);
    run(command)
}

fn find(program: &str) -> Result<PathBuf, ClusterError> {
    ["/usr/bin", "/bin"]
        .into_iter()
        .map(|folder| Path::new(folder).join(program))
        .find(|path| path.exists())
        .ok_or_else(|| ClusterError::step("find a program", format!("{program} is not installed")))
}
