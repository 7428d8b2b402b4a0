//! The partitions of IPUJobs and IPUPartitions at the proxy: a store that follows the event stream, and
//! requests.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;
use ipu_core::{JobKey, PartitionId};
use ipu_proxy_client::{
    DeletePartition, EventKind, HoldState, OnNoCapacity, PartitionDocument, ProxyClient, PutPartition,
    ResetPartition,
};
use kube::runtime::reflector::ObjectRef;
use parking_lot::RwLock;

use super::error::ReconcileError;
use super::{StoredJob, StoredPartition};
use crate::crd::{IpuJob, IpuPartition};

/// Delay before the event stream is opened again.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// Partitions of IPUJobs and IPUPartitions, as the event stream of the proxy lists them.
pub(super) struct Partitions {
    proxy: ProxyClient,
    /// None while the event stream is disconnected.
    listed: RwLock<Option<HashMap<PartitionId, PartitionDocument>>>,
}

impl Partitions {
    pub(super) fn new(proxy: ProxyClient) -> Self {
        Self {
            proxy,
            listed: RwLock::default(),
        }
    }

    /// Returns whether the event stream is connected.
    pub(super) fn is_connected(&self) -> bool {
        self.listed.read().is_some()
    }

    /// Returns the listed instances of a job. The status of the job may lack some of them.
    pub(super) fn instances_of(&self, job: &JobKey) -> BTreeSet<u32> {
        let listed = self.listed.read();
        let all = listed.iter().flat_map(HashMap::values);
        let own = all.filter(|document| is_owner(document, job));
        own.map(|document| document.instance).collect()
    }

    /// Returns a partition as it is listed while it is ready for use. Everything else comes from the proxy:
    /// the place in the queue, the reason of an open call, and the certainty that the proxy has no such
    /// partition.
    pub(super) async fn get(&self, id: &PartitionId) -> Result<Option<PartitionDocument>, ReconcileError> {
        let known = {
            let listed = self.listed.read();
            listed.as_ref().and_then(|listed| listed.get(id)).cloned()
        };
        let is_settled = |state| matches!(state, HoldState::Active | HoldState::Failed);
        match known.filter(|document| is_settled(document.state)) {
            Some(document) => Ok(Some(document)),
            None => self.fetch(id).await,
        }
    }

    /// Returns a partition from the proxy, or `None` if the ledger does not have it.
    pub(super) async fn fetch(&self, id: &PartitionId) -> Result<Option<PartitionDocument>, ReconcileError> {
        match self.proxy.partition(id).await {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.code() == Some("NotFound") => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Requests a partition: creates it, resets it for a newer attempt, or queues the request.
    pub(super) async fn ensure(
        &self,
        id: &PartitionId,
        wanted: &PutPartition,
    ) -> Result<PartitionDocument, ReconcileError> {
        let at_once = OnNoCapacity::Queue(Duration::ZERO);
        let document = self.proxy.put(id, wanted, at_once).await?;
        self.record(document.clone());
        Ok(document)
    }

    /// Resets a partition.
    pub(super) async fn reset(
        &self,
        id: &PartitionId,
        request: &ResetPartition,
    ) -> Result<PartitionDocument, ReconcileError> {
        let document = self.proxy.reset(id, request).await?;
        self.record(document.clone());
        Ok(document)
    }

    /// Releases a partition durably. Does nothing if it does not exist or has another owner.
    pub(super) async fn release(
        &self,
        id: &PartitionId,
        request: &DeletePartition,
    ) -> Result<(), ReconcileError> {
        match self.proxy.delete(id, request).await {
            Ok(_) => {}
            Err(error) if matches!(error.code(), Some("NotFound" | "NotTheOwner")) => {}
            Err(error) => return Err(error.into()),
        }
        // The release goes on at the proxy. Until its event arrives, the state is read from there.
        if let Some(listed) = &mut *self.listed.write() {
            listed.remove(id);
        }
        Ok(())
    }

    /// Lists a response, until the event of the same change or a later one arrives. Such an event may have
    /// arrived before the response.
    fn record(&self, document: PartitionDocument) {
        if let Some(listed) = &mut *self.listed.write() {
            let known = listed.get(&document.id);
            let is_known =
                known.is_some_and(|known| known.owner == document.owner && known.attempt >= document.attempt);
            if !is_known {
                listed.insert(document.id.clone(), document);
            }
        }
    }

    /// Follows the event stream, and sends the jobs and IPUPartitions whose partitions change.
    pub(super) async fn watch(
        &self,
        jobs: UnboundedSender<ObjectRef<StoredJob>>,
        partitions: UnboundedSender<ObjectRef<StoredPartition>>,
    ) {
        let send = |document: &PartitionDocument| {
            // A receiver is gone when its controller stops.
            if let Some(job) = owner_of(document, IpuJob::KIND) {
                let _ = jobs.unbounded_send(job);
            } else if let Some(partition) = owner_of(document, IpuPartition::KIND) {
                let _ = partitions.unbounded_send(partition);
            }
        };
        let mut is_lost = false;
        loop {
            // Without the id of an earlier event, the stream begins with a snapshot.
            let mut events = self.proxy.events(None);
            let error = loop {
                match events.next().await {
                    Ok(event) => {
                        self.apply(event.kind).iter().for_each(send);
                        if std::mem::take(&mut is_lost) {
                            tracing::warn!("the event stream of the proxy is back");
                        }
                    }
                    Err(error) => break error,
                }
            };
            self.disconnect();
            if !std::mem::replace(&mut is_lost, true) {
                tracing::warn!(%error, "the event stream of the proxy is lost");
            }
            tokio::time::sleep(REOPEN_INTERVAL).await;
        }
    }

    /// Applies an event, and returns the changed partitions.
    fn apply(&self, event: EventKind) -> Vec<PartitionDocument> {
        let mut listed = self.listed.write();
        match event {
            EventKind::Snapshot(list) => {
                let owned = list.partitions.into_iter();
                let owned = owned.filter(is_of_kubernetes);
                let all: HashMap<_, _> = owned.map(|document| (document.id.clone(), document)).collect();
                let before = listed.replace(all.clone()).unwrap_or_default();
                let removed = before.into_iter().filter(|(id, _)| !all.contains_key(id));
                let removed: Vec<_> = removed.map(|(_, document)| document).collect();
                all.into_values().chain(removed).collect()
            }
            EventKind::Subject(_) => Vec::new(),
            EventKind::Change(change) => {
                let Some(listed) = listed.as_mut() else {
                    return Vec::new();
                };
                match change.partition.filter(is_of_kubernetes) {
                    Some(document) => {
                        listed.insert(change.id, document.clone());
                        vec![document]
                    }
                    None => listed.remove(&change.id).into_iter().collect(),
                }
            }
        }
    }

    fn disconnect(&self) {
        *self.listed.write() = None;
    }
}

/// Returns whether a job owns a partition.
pub(super) fn is_owner(document: &PartitionDocument, job: &JobKey) -> bool {
    let owner = document.owner.as_ref();
    owner.is_some_and(|owner| owner.kind == IpuJob::KIND && owner.uid == job.uid.as_str())
}

/// Returns whether an IPUJob or an IPUPartition owns a partition.
fn is_of_kubernetes(document: &PartitionDocument) -> bool {
    let kind = document.owner.as_ref().map(|owner| owner.kind.as_str());
    matches!(kind, Some(IpuJob::KIND | IpuPartition::KIND))
}

/// Returns the owner of a partition, if it is of this kind.
fn owner_of<K>(document: &PartitionDocument, kind: &str) -> Option<ObjectRef<K>>
where
    K: kube::Resource<DynamicType = ()>,
{
    let owner = document.owner.as_ref().filter(|owner| owner.kind == kind)?;
    Some(ObjectRef::new(&owner.name).within(&owner.namespace))
}
