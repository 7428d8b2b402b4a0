//! Clusters for tests, which skip themselves without the tools.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cluster::Cluster;
use crate::concurrency_limit::ClusterSlot;
use crate::error::ClusterError;
use crate::node_sandbox::{check_support, sweep_cgroups};
use crate::options::{ClusterLifetime, ClusterProfile, Options};
use crate::tools::{Tool, Tools};

/// Returns the API server that the tests of this process share; each test uses names of its own. Prints a
/// message and returns `None` if the tools are missing outside CI.
///
/// # Panics
///
/// If the tools are missing and `CI` is set, or if the cluster does not start.
#[must_use]
pub fn shared(test: &str) -> Option<&'static Cluster> {
    shared_with(test, ClusterProfile::ApiServer)
}

/// Returns the shared cluster of this profile, as [`shared`] does; there is one per profile.
///
/// # Panics
///
/// As for [`shared`].
#[must_use]
pub fn shared_with(test: &str, profile: ClusterProfile) -> Option<&'static Cluster> {
    static SHARED: [OnceLock<Cluster>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    let tools = tools(test, profile)?;
    let index = match profile {
        ClusterProfile::ApiServer => 0,
        ClusterProfile::Controllers => 1,
        ClusterProfile::Node => 2,
    };
    Some(SHARED[index].get_or_init(|| start(&tools, options(profile))))
}

/// Returns an API server of the test's own, which the test may break. At most two run at a time per
/// process, and a caller waits for a free slot. A test that holds two must not request another. Prints a
/// message and returns `None` if the tools are missing outside CI.
///
/// # Panics
///
/// If the tools are missing and `CI` is set, or if the cluster does not start.
#[must_use]
pub fn private(test: &str) -> Option<Cluster> {
    private_with(test, ClusterProfile::ApiServer)
}

/// Returns a private cluster of this profile, as [`private`] does.
///
/// # Panics
///
/// As for [`private`].
#[must_use]
pub fn private_with(test: &str, profile: ClusterProfile) -> Option<Cluster> {
    private_from(test, options(profile))
}

/// Returns a private cluster with a node and this cluster domain, as [`private`] does.
///
/// # Panics
///
/// As for [`private`].
#[must_use]
pub fn private_in_domain(test: &str, domain: &'static str) -> Option<Cluster> {
    private_from(test, options(ClusterProfile::Node).domain(domain))
}

fn private_from(test: &str, options: Options) -> Option<Cluster> {
    tools(test, options.extent).map(|tools| {
        let slot = ClusterSlot::wait();
        let mut cluster = start(&tools, options);
        cluster.hold_slot(slot);
        cluster
    })
}

/// Returns the tools if all `required` ones are there. Prints a message and returns `None` if one is missing
/// outside CI.
///
/// # Panics
///
/// If a tool is missing and `CI` is set.
#[must_use]
pub fn find_tools(test: &str, required: &[Tool]) -> Option<Tools> {
    found_or_skipped(test, Tools::find_all(required))
}

fn tools(test: &str, profile: ClusterProfile) -> Option<Tools> {
    let found = Tools::find_for(profile).and_then(|tools| {
        if profile >= ClusterProfile::Node {
            check_support()?;
        }
        Ok(tools)
    });
    found_or_skipped(test, found)
}

#[expect(clippy::print_stdout, reason = "a skipped test prints the reason")]
fn found_or_skipped(test: &str, found: Result<Tools, ClusterError>) -> Option<Tools> {
    match found {
        Ok(tools) => Some(tools),
        Err(error) => {
            assert!(
                env::var_os("CI").is_none(),
                "{test}: {error}, and CI requires this test"
            );
            println!("skipped: {test}: {error}");
            None
        }
    }
}

fn options(profile: ClusterProfile) -> Options {
    Options::new(ClusterLifetime::WithThisProcess).profile(profile)
}

fn start(tools: &Tools, options: Options) -> Cluster {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let root = env::temp_dir().join("ipu-test-cluster");
    sweep(&root);
    sweep_cgroups();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = root.join(format!("{}-{number}", std::process::id()));
    match Cluster::start_with(tools, &directory, options) {
        Ok(mut cluster) => {
            cluster.remove_on_drop();
            cluster
        }
        Err(error) => panic!("{error}"),
    }
}

/// Removes the files of processes that have ended.
fn sweep(root: &Path) {
    let leftovers: Vec<PathBuf> = fs::read_dir(root)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    for path in leftovers {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let owner = name.split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(owner).exists() {
            // Another process may sweep at the same time.
            let _ = fs::remove_dir_all(&path);
        }
    }
}
