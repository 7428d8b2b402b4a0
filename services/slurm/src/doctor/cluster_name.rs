//! The proxy, and traces of a second cluster with the name of this one. Its partitions have owners of this
//! cluster, so the agent here would release those of running jobs there.

use std::path::Path;

use ipu_core::{Namespace, PartitionId};
use ipu_proxy_client::{Heartbeat, PartitionDocument, ProxyClient};
use ipu_slurm::{OWNER_KIND, cluster_namespace, config_value};

use super::controllers;
use crate::failure::Failure;
use crate::pool::command::{OWNER_KIND as POOL_KIND, SHARED_NODE};
use crate::render_command::Report;
use crate::slurm_commands::Slurm;

/// Id that no partition has: those of jobs and nodes have other beginnings.
const ABSENT_PARTITION: &str = "ipu-slurm-doctor";

/// The facts of this cluster that a second one does not share.
struct ClusterFacts {
    name: String,
    /// The id of the next job.
    next_job_id: u32,
    nodes: Vec<String>,
}

/// Checks that the proxy answers, and the owners in its ledger. A slurmctld that does not answer is not a
/// finding.
pub(super) fn check(report: &mut Report, directory: &Path) {
    let Some(url) = report.conf.cluster().proxy().map(str::to_owned) else {
        // A node with static partitions needs no proxy.
        return;
    };
    let conf = &report.conf;
    let ledger = crate::block_on(async {
        let proxy = crate::proxy::connect(conf)?;
        ensure_token(&proxy).await?;
        let partitions = proxy.partitions().await?;
        Ok((partitions, proxy.controllers().await?.controllers))
    });
    // First the ledger: a job that starts later has no smaller id.
    let (partitions, controllers) = match ledger {
        Ok(facts) => facts,
        Err(Failure(reason)) => {
            return report.error(format!(
                "Proxy = {url}: {reason}; start vipu-proxy, or correct Proxy and ProxyTokenFile in vipu.conf"
            ));
        }
    };
    let listed = controllers.iter().filter(|status| !status.draining);
    let listed: Vec<&str> = listed.map(|status| status.controller.name.as_str()).collect();
    for line in controllers::unknown(&report.conf, &listed) {
        report.error(line);
    }
    let mut found = None;
    let compare = async {
        let slurm = Slurm::find(directory);
        let config = slurm.config().await?;
        let nodes = slurm.node_names().await?;
        if let Some(facts) = ClusterFacts::parse(&config, nodes) {
            found = facts.finding(&partitions);
        }
        Ok::<(), Failure>(())
    };
    let _ = crate::block_on(compare);
    if let Some(line) = found {
        report.error(line);
    }
}

/// Checks that the proxy accepts the token: a heartbeat needs it, and this partition does not exist.
async fn ensure_token(proxy: &ProxyClient) -> Result<(), Failure> {
    let mut heartbeat = Heartbeat::new(1);
    heartbeat.uid = Some(ABSENT_PARTITION.to_owned());
    let absent = PartitionId::new(ABSENT_PARTITION)?;
    match proxy.heartbeat(&absent, &heartbeat).await {
        Ok(_) => Ok(()),
        Err(error) if error.problem().is_some_and(|problem| problem.status != 401) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl ClusterFacts {
    /// Reads the output of `scontrol show config`.
    fn parse(config: &str, nodes: Vec<String>) -> Option<Self> {
        Some(Self {
            name: config_value(config, "ClusterName")?.to_owned(),
            next_job_id: config_value(config, "NEXT_JOB_ID")?.parse().ok()?,
            nodes,
        })
    }

    /// Returns the finding about owners of this name that cannot be of this cluster.
    fn finding(&self, partitions: &[PartitionDocument]) -> Option<String> {
        let namespace = cluster_namespace(&self.name).ok();
        let namespace = namespace.as_ref().map(Namespace::as_str);
        let mut traces = partitions.iter().filter_map(|partition| {
            let owner = partition.owner.as_ref()?;
            let reason = match owner.kind.as_str() {
                _ if Some(owner.namespace.as_str()) != namespace => return None,
                OWNER_KIND => self.reason_of_job(&owner.uid)?,
                POOL_KIND => self.reason_of_node(&owner.name)?,
                _ => return None,
            };
            Some(format!("partition {} of {owner}, but {reason}", partition.id))
        });
        let first = traces.next()?;
        let more = match traces.count() {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        Some(format!(
            "ClusterName = {}: the proxy has {first}{more}; another cluster with this name uses the proxy, or \
             slurmctld has lost its state: give each cluster a name of its own",
            self.name
        ))
    }

    fn reason_of_job(&self, uid: &str) -> Option<String> {
        // The second start of a run has another number behind the run.
        let job_id = uid.split('.').next()?.parse::<u32>().ok()?;
        let is_later = job_id >= self.next_job_id;
        is_later.then(|| format!("the next job here has the id {}", self.next_job_id))
    }

    fn reason_of_node(&self, node: &str) -> Option<String> {
        let is_known = node == SHARED_NODE || self.nodes.iter().any(|known| known == node);
        (!is_known).then(|| format!("slurm.conf has no node {node}"))
    }
}
