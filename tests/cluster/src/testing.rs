//! How tests get a cluster, or skip themselves.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cluster::Cluster;
use crate::concurrency_limit::ClusterSlot;
use crate::node_sandbox::{possible, sweep_cgroups};
use crate::options::{ClusterLifetime, ClusterProfile, Options};
use crate::tools::Tools;

/// The API server that the tests of this process share; each of them uses names of its own. None, after saying so, if the
/// tools are missing on a machine of a person.
///
/// # Panics
///
/// If the tools are missing and `CI` is set, or if they are there and no cluster comes up.
#[must_use]
pub fn shared(test: &str) -> Option<&'static Cluster> {
    shared_with(test, ClusterProfile::ApiServer)
}

/// The same for a cluster of this extent; there is one of each.
///
/// # Panics
///
/// As for [`shared`].
#[must_use]
pub fn shared_with(test: &str, extent: ClusterProfile) -> Option<&'static Cluster> {
    static SHARED: [OnceLock<Cluster>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
    let tools = tools(test, extent)?;
    let which = match extent {
        ClusterProfile::ApiServer => 0,
        ClusterProfile::Controllers => 1,
        ClusterProfile::Node => 2,
    };
    Some(SHARED[which].get_or_init(|| start(&tools, extent)))
}

/// An API server of the test's own, which it may break. At most two such run at a time in a process, so a test must not ask
/// for another one while it has two; who asks waits. None, after saying so, if the tools are missing on a machine of a
/// person.
///
/// # Panics
///
/// If the tools are missing and `CI` is set, or if they are there and no cluster comes up.
#[must_use]
pub fn private(test: &str) -> Option<Cluster> {
    private_with(test, ClusterProfile::ApiServer)
}

/// The same for a cluster of this extent.
///
/// # Panics
///
/// As for [`private`].
#[must_use]
pub fn private_with(test: &str, extent: ClusterProfile) -> Option<Cluster> {
    tools(test, extent).map(|tools| {
        let place = ClusterSlot::wait();
        let mut cluster = start(&tools, extent);
        cluster.takes(place);
        cluster
    })
}

#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn tools(test: &str, extent: ClusterProfile) -> Option<Tools> {
    let found = Tools::find_for(extent).and_then(|tools| {
        if extent >= ClusterProfile::Node {
            possible()?;
        }
        Ok(tools)
    });
    match found {
        Ok(tools) => Some(tools),
        Err(error) => {
            assert!(
                env::var_os("CI").is_none(),
                "{test}: {error}, and CI wants this test"
            );
            println!("skipped: {test}: {error}");
            None
        }
    }
}

fn start(tools: &Tools, extent: ClusterProfile) -> Cluster {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let all = env::temp_dir().join("ipu-test-cluster");
    sweep(&all);
    sweep_cgroups();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let directory = all.join(format!("{}-{number}", std::process::id()));
    let options = Options::new(ClusterLifetime::WithThisProcess).extent(extent);
    match Cluster::start_with(tools, &directory, options) {
        Ok(mut cluster) => {
            cluster.remove_at_end();
            cluster
        }
        Err(error) => panic!("{error}"),
    }
}

/// Removes what processes left that are no more.
fn sweep(all: &Path) {
    let left: Vec<PathBuf> = fs::read_dir(all)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    for path in left {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let owner = name.split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(owner).exists() {
            // Somebody else may sweep at the same time.
            let _ = fs::remove_dir_all(&path);
        }
    }
}
