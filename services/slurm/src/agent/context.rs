//! The configuration, Slurm, and the proxy, which every pass needs.

use ipu_core::{Namespace, Timestamp};
use ipu_proxy_client::{PartitionDocument, ProxyClient};
use ipu_slurm::conf::ConfFiles;
use ipu_slurm::{Hold, OWNER_KIND, RunStart, cluster_namespace, config_value};

use crate::conf_files;
use crate::failure::Failure;
use crate::slurm_commands::Slurm;

/// The configuration, Slurm, and the proxy.
pub(super) struct Context {
    pub(super) conf: ConfFiles,
    pub(super) slurm: Slurm,
    pub(super) proxy: ProxyClient,
    /// The name of the Slurm cluster: the namespace of its owners.
    pub(super) cluster: Namespace,
}

impl Context {
    /// Reads the configuration, and asks slurmctld for the name of the cluster.
    pub(super) async fn load() -> Result<Self, Failure> {
        let directory = conf_files::directory();
        let conf = conf_files::load(&directory, &[])?;
        let slurm = Slurm::find(&directory);
        let proxy = crate::proxy::connect(&conf)?;
        let config = slurm.config().await?;
        let name = config_value(&config, "ClusterName").ok_or_else(|| {
            Failure("scontrol show config has no ClusterName: check the version of Slurm".into())
        })?;
        Ok(Self {
            conf,
            slurm,
            proxy,
            cluster: cluster_namespace(name)?,
        })
    }

    /// Returns whether the owner of a partition is a run of this cluster.
    pub(super) fn is_ours(&self, partition: &PartitionDocument) -> bool {
        partition
            .owner
            .as_ref()
            .is_some_and(|owner| owner.kind == OWNER_KIND && owner.namespace == self.cluster.as_str())
    }

    /// Returns the start of a run of this cluster that owns a partition.
    pub(super) fn start_of(&self, partition: &PartitionDocument) -> Option<RunStart> {
        let owner = partition.owner.as_ref().filter(|_| self.is_ours(partition))?;
        RunStart::from_uid(&owner.uid).ok()
    }

    /// Returns the hold of a run of this cluster.
    pub(super) fn hold_of(&self, partition: &PartitionDocument) -> Option<Hold> {
        Some(Hold {
            start: self.start_of(partition)?,
            since: Some(seconds(partition.held_since.unwrap_or(partition.since))),
        })
    }
}

/// Returns a time of the ledger in seconds since 1970.
const fn seconds(time: Timestamp) -> u64 {
    time.as_millis() / 1000
}

/// Returns the time in seconds since 1970.
pub(super) fn now() -> u64 {
    seconds(ipu_proxy_client::now())
}
