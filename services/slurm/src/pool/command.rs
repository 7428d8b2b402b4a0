//! The command `ipu-slurm pool`: an administrator makes and removes static partitions.

mod findings;
mod shared;

use std::fs;
use std::io::{self, Write as _};
use std::time::Duration;

use clap::Subcommand;
use ipu_core::{IpuCount, JobKey, Owner, PartitionId};
use ipu_proxy_client::{
    HoldState, OnNoCapacity, OwnerDocument, PartitionDocument, ProxyClient, PutPartition,
};
use ipu_slurm::conf::{ConfFiles, ModelConf, NodeGresList, SlurmConf, VipuGres};
use ipu_slurm::{POOL_ALLOCATED, POOL_FREE, PoolFile, PoolState};

use crate::conf_files;
use crate::failure::Failure;
use crate::pool_directory::PoolDirectory;
use crate::proxy::pool_release_options;
use crate::safe_file;

/// The kind of the owner of static partitions. No rule releases them.
pub(crate) const OWNER_KIND: &str = "SlurmPool";
/// The owner's name of the partition of option 3, in the place of a node.
pub(crate) const SHARED_NODE: &str = "shared";
/// Maximum wait for a partition to become active, or to be released.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);
/// A command about static partitions.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub(crate) enum PoolCommand {
    /// Create the partitions of a node's Gres line, and its directory. Repeat it after a failure.
    Create(NodeOptions),
    /// List the partitions of a node with the jobs that have them.
    List(NodeOptions),
    /// Compare directory, Gres line and proxy, and print what is wrong. Changes nothing.
    Check(NodeOptions),
    /// Remove the partitions of a node. Refused while a job has one.
    Destroy(NodeOptions),
    /// Create one reconfigurable partition for all jobs, and print its TaskProlog.
    CreateShared {
        /// Name of the partition.
        name: String,
        /// Number of IPUs, a power of two up to 64.
        #[arg(long)]
        size: IpuCount,
        /// Model, if there are several.
        #[arg(long)]
        model: Option<String>,
    },
}

/// The node that a command acts on, and the model of the partitions.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct NodeOptions {
    /// Node as slurm.conf names it; default: the name of this host.
    #[arg(long)]
    node: Option<String>,
    /// Model, if there are several.
    #[arg(long)]
    model: Option<String>,
}

/// The static partitions of a node: its directory, and the Gres line of its configuration.
struct NodePool {
    conf: ConfFiles,
    node: String,
    directory: PoolDirectory,
    /// The sizes and counts of the Gres line.
    gres: Vec<(IpuCount, u32)>,
    cluster: String,
}

/// Runs a command.
pub(crate) fn run(command: &PoolCommand) -> Result<(), Failure> {
    match command {
        PoolCommand::Create(options) => {
            let pool = NodePool::load(options)?;
            crate::block_on(async { pool.create(options.model.as_deref()).await })
        }
        PoolCommand::List(options) => list(&NodePool::load(options)?),
        PoolCommand::Check(options) => {
            let pool = NodePool::load(options)?;
            crate::block_on(async { findings::check(&pool).await })
        }
        PoolCommand::Destroy(options) => {
            let pool = NodePool::load(options)?;
            crate::block_on(async { pool.destroy().await })
        }
        PoolCommand::CreateShared { name, size, model } => {
            crate::block_on(async { shared::create(name, *size, model.as_deref()).await })
        }
    }
}

impl NodePool {
    fn load(options: &NodeOptions) -> Result<Self, Failure> {
        let conf_directory = conf_files::directory();
        let conf = conf_files::load(&conf_directory, &[])?;
        let node = match &options.node {
            Some(node) => node.clone(),
            None => {
                let name = fs::read_to_string("/proc/sys/kernel/hostname")?;
                name.trim().split('.').next().unwrap_or_default().to_owned()
            }
        };
        let root = conf
            .cluster()
            .pool_dir(&node)
            .ok_or_else(|| Failure("vipu.conf has no PoolDir: add PoolDir=/var/lib/ipu-pool/%n".into()))?;
        let slurm_conf = conf_files::slurm_conf(&conf_directory).map_err(|error| {
            let path = conf_directory.join(conf_files::SLURM_CONF);
            Failure(format!("cannot read {}: {error}", path.display()))
        })?;
        let models: Vec<&str> = conf.models().map(|(name, _)| name).collect();
        let nodes = NodeGresList::parse(&slurm_conf, &models);
        let mut errors = nodes.errors_of(&node);
        let gres = nodes.node(&node).map(|node| node.gres()).unwrap_or_default();
        if gres.is_empty() {
            errors.extend_from_slice(slurm_conf.unread());
        }
        if !errors.is_empty() {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            return Err(Failure(errors.join("; ")));
        }
        let gres = gres.iter().filter_map(|gres| match gres {
            VipuGres::Partitions { size, count } => Some((*size, *count)),
            VipuGres::Model { .. } => None,
        });
        Ok(Self {
            gres: gres.collect(),
            directory: PoolDirectory::open(root, &node)?,
            cluster: cluster_name(&slurm_conf)?,
            conf,
            node,
        })
    }

    /// Reads the directory.
    fn read_state(&self) -> Result<PoolState, Failure> {
        self.directory.read_state().map_err(|error| {
            let root = self.directory.root().display();
            Failure(format!("cannot read {root}: {error}; run pool create"))
        })
    }

    /// Returns the problem of a node whose jobs get any of several sizes.
    fn mixed_sizes(&self) -> Option<String> {
        let is_mixed = self.conf.cluster().every_job_has_one() && self.gres.len() > 1;
        is_mixed.then(|| {
            format!(
                "Gres of node {} has several sizes, and with EveryJobHasOne=1 a job would get any of them; use one size, \
                 or remove EveryJobHasOne",
                self.node
            )
        })
    }

    fn owner(&self, size: IpuCount) -> Result<Owner, Failure> {
        owner(&self.cluster, &self.node, &format!("{}.{size}", self.node))
    }

    async fn create(&self, model: Option<&str>) -> Result<(), Failure> {
        if self.gres.is_empty() {
            return Err(Failure(format!(
                "node {} has no static partitions in slurm.conf: add Gres=vipu:<size>:<count> to its line, or \
                 name another node by --node",
                self.node
            )));
        }
        if let Some(problem) = self.mixed_sizes() {
            return Err(Failure(problem));
        }
        let model = only_model(&self.conf, model)?;
        let proxy = crate::proxy::connect(&self.conf)?;
        for name in [POOL_FREE, POOL_ALLOCATED] {
            fs::create_dir_all(self.directory.root().join(name))?;
        }
        // Before any partition: it refuses the directory of another node.
        drop(self.directory.lock()?);
        for (size, count) in &self.gres {
            let owner = self.owner(*size)?;
            for instance in 0..*count {
                let id = owner.job.partition_id(instance);
                let mut request = PutPartition::new(OwnerDocument::from(&owner), size.get());
                request.instance = instance;
                request.controller = Some(model.api_address());
                self.withdraw_quarantined(&proxy, &id).await?;
                let partition = make(&proxy, &id, &request).await?;
                self.add_file(&id, &partition)?;
            }
        }
        list(self)
    }

    /// Removes the file of a partition that is quarantined, because a request for it resets it. The partition
    /// of a job is refused.
    async fn withdraw_quarantined(&self, proxy: &ProxyClient, id: &PartitionId) -> Result<(), Failure> {
        match proxy.partition(id).await {
            Ok(found) if found.state == HoldState::Quarantined => {}
            _ => return Ok(()),
        }
        let pool = self.directory.lock()?;
        let jobs: Vec<String> = pool
            .state
            .users_of(id.as_str())
            .map(|id| id.to_string())
            .collect();
        if !jobs.is_empty() {
            return Err(Failure(format!(
                "job {} has partition {id}, which is quarantined, and pool create would reset it; drain node {} and \
                 repeat the command when its jobs have ended",
                jobs.join(", "),
                self.node
            )));
        }
        let free = self.directory.root().join(POOL_FREE).join(id.as_str());
        Ok(safe_file::remove_if_exists(&free)?)
    }

    /// Adds the file of a partition, if a job has it not already.
    fn add_file(&self, id: &PartitionId, partition: &PartitionDocument) -> Result<(), Failure> {
        let file = PoolFile {
            size: IpuCount::try_from(partition.size).ok(),
            variables: partition.env.clone(),
        };
        let pool = self.directory.lock()?;
        if !pool.state.allocated.iter().any(|known| known.name == id.as_str()) {
            safe_file::replace(
                &self.directory.root().join(POOL_FREE),
                id.as_str(),
                &file.render(),
                false,
            )?;
        }
        Ok(())
    }

    async fn destroy(&self) -> Result<(), Failure> {
        if self.directory.exists() {
            let pool = self.directory.lock()?;
            if let Some(partition) = pool.state.allocated.first() {
                let jobs: Vec<String> = pool
                    .state
                    .users_of(&partition.name)
                    .map(|id| id.to_string())
                    .collect();
                return Err(Failure(format!(
                    "job {} has partition {}; drain node {} and repeat the command when its jobs have ended",
                    jobs.join(", "),
                    partition.name,
                    self.node
                )));
            }
            // Without their files, no job can get the partitions.
            for partition in &pool.state.free {
                safe_file::remove_if_exists(&self.directory.root().join(POOL_FREE).join(&partition.name))?;
            }
        }
        let proxy = crate::proxy::connect(&self.conf)?;
        let held = self.held(&proxy).await?;
        if !held.is_empty() && !self.directory.exists() {
            return Err(Failure(format!(
                "{} does not exist on this host, so the jobs with partitions are unknown; run the command on \
                 node {}, or create the directories `free` and `allocated` in it first",
                self.directory.root().display(),
                self.node
            )));
        }
        for partition in held {
            let options = pool_release_options(&self.conf, &partition);
            proxy
                .wait_released(&partition.id, &options, RELEASE_TIMEOUT, &mut |_| ())
                .await?;
            print(&format!("partition {} released\n", partition.id))?;
        }
        Ok(self.directory.disown()?)
    }

    /// Returns the partitions of the node at the proxy.
    async fn held(&self, proxy: &ProxyClient) -> Result<Vec<PartitionDocument>, Failure> {
        let mut partitions = proxy.partitions().await?;
        partitions.retain(|partition| {
            partition.owner.as_ref().is_some_and(|owner| {
                (owner.kind.as_str(), owner.namespace.as_str(), owner.name.as_str())
                    == (OWNER_KIND, self.cluster.as_str(), self.node.as_str())
            })
        });
        Ok(partitions)
    }
}

fn list(pool: &NodePool) -> Result<(), Failure> {
    let state = pool.read_state()?;
    let mut text = format!("{:<34} {:>4} {:<10} JOB\n", "PARTITION", "SIZE", "STATE");
    for (partitions, place) in [(&state.free, POOL_FREE), (&state.allocated, POOL_ALLOCATED)] {
        for partition in partitions {
            let size = partition
                .size
                .map_or_else(|| "-".to_owned(), |size| size.to_string());
            let jobs: Vec<String> = state.users_of(&partition.name).map(|id| id.to_string()).collect();
            let jobs = jobs.join(",");
            text.push_str(&format!("{:<34} {size:>4} {place:<10} {jobs}\n", partition.name));
        }
    }
    print(&text)
}

/// Creates a partition, or finds the one of an earlier command.
async fn make(
    proxy: &ProxyClient,
    id: &PartitionId,
    request: &PutPartition,
) -> Result<PartitionDocument, Failure> {
    proxy.put(id, request, OnNoCapacity::Reject).await?;
    Ok(proxy.wait_active(id, RELEASE_TIMEOUT, &mut |_| ()).await?)
}

fn owner(cluster: &str, name: &str, uid: &str) -> Result<Owner, Failure> {
    let job = JobKey::new(cluster, name, uid)?;
    let kind = OWNER_KIND.to_owned();
    Ok(Owner { kind, job })
}

fn only_model<'a>(conf: &'a ConfFiles, name: Option<&str>) -> Result<&'a ModelConf, Failure> {
    let named = |(known, _): &(&str, &ModelConf)| name.is_none_or(|name| name == *known);
    let mut models: Vec<&ModelConf> = conf.models().filter(named).map(|(_, model)| model).collect();
    // A link to vipu.conf is the same model.
    models.dedup_by_key(|model| model.api_address());
    match models[..] {
        [model] => Ok(model),
        _ => {
            let names: Vec<&str> = conf.models().map(|(name, _)| name).collect();
            let names = names.join(", ");
            Err(Failure(format!(
                "--model must name one model; the models are: {names}"
            )))
        }
    }
}

/// Returns the namespace of `ClusterName` of slurm.conf.
fn cluster_name(slurm_conf: &SlurmConf) -> Result<String, Failure> {
    let name = slurm_conf
        .cluster_name()
        .ok_or_else(|| Failure("slurm.conf has no ClusterName: add ClusterName=<name>".into()))?;
    Ok(ipu_slurm::cluster_namespace(&name)?.into())
}

fn print(text: &str) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}
