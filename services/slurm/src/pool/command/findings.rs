//! The command `ipu-slurm pool check`.

use std::collections::BTreeSet;

use ipu_proxy_client::{HoldState, ProxyClient};
use ipu_slurm::PoolState;

use super::{NodePool, print};
use crate::failure::Failure;
use crate::pool_directory::PoolDirectoryError;

/// Prints what is wrong, one finding a line, and fails if there is any.
pub(super) async fn check(pool: &NodePool) -> Result<(), Failure> {
    let mut findings = permissions(pool)?;
    findings.extend(pool.directory.check_owner().err().map(|error| error.to_string()));
    let state = pool.read_state()?;
    findings.extend(counts(pool, &state));
    findings.extend(pool.mixed_sizes());
    let proxy = crate::proxy::connect(&pool.conf)?;
    let held = pool.held(&proxy).await?;
    let quarantined = quarantined(&proxy).await?;
    for partition in state.free.iter().chain(&state.allocated) {
        let name = &partition.name;
        match held.iter().find(|held| held.id.as_str() == name) {
            None if quarantined.contains(name) => findings.push(format!(
                "partition {name} is quarantined at the proxy; drain the node, and run pool create when its jobs have \
                 ended"
            )),
            Some(held) if held.state != HoldState::Active => {
                findings.push(format!(
                    "partition {name} is {} at the proxy, not active",
                    held.state
                ));
            }
            Some(held) if partition.size.map(|size| size.get()) != Some(held.size) => {
                findings.push(format!(
                    "partition {name} has {} IPUs at the proxy; run pool create",
                    held.size
                ));
            }
            Some(_) => {}
            None => findings.push(format!("partition {name} is not at the proxy; run pool create")),
        }
    }
    for (job_id, partitions) in &state.pointers {
        for name in partitions {
            let is_known = state
                .free
                .iter()
                .chain(&state.allocated)
                .any(|known| known.name == *name);
            if !is_known {
                findings.push(format!("job {job_id} has partition {name}, which has no file"));
            } else if state.users_of(name).count() > 1 {
                findings.push(format!("job {job_id} shares partition {name} with another job"));
            }
        }
    }
    if findings.is_empty() {
        return print(&format!("node {}: no problem found\n", pool.node));
    }
    print(&(findings.join("\n") + "\n"))?;
    Err(Failure(format!(
        "node {}: {} problems found",
        pool.node,
        findings.len()
    )))
}

/// Returns the ids of quarantined partitions; after the loss of the ledger they have no owner.
async fn quarantined(proxy: &ProxyClient) -> Result<BTreeSet<String>, Failure> {
    let mut partitions = proxy.partitions().await?;
    partitions.retain(|partition| partition.state == HoldState::Quarantined);
    Ok(partitions
        .iter()
        .map(|partition| partition.id.to_string())
        .collect())
}

fn permissions(pool: &NodePool) -> Result<Vec<String>, Failure> {
    let paths = pool.directory.insecure_paths().map_err(|error| {
        let root = pool.directory.root().display();
        Failure(format!("cannot read {root}: {error}; run pool create"))
    })?;
    let findings = paths.into_iter().map(PoolDirectoryError::Insecure);
    Ok(findings.map(|finding| finding.to_string()).collect())
}

fn counts(pool: &NodePool, state: &PoolState) -> Vec<String> {
    let mut findings = Vec::new();
    for (size, count) in &pool.gres {
        let all = state.free.iter().chain(&state.allocated);
        let found = all.filter(|partition| partition.size == Some(*size)).count();
        if usize::try_from(*count) != Ok(found) {
            findings.push(format!(
                "Gres has {count} partitions of size {size}, and the directory {found}; run pool create, or pool \
                 destroy first if there are too many"
            ));
        }
    }
    findings
}
