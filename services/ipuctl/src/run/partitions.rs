//! Requests, observes and releases the partitions of one run through the proxy, as the plan decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ipu_core::hardware::PartitionSpec;
use ipu_core::job::{JobSpec, PartitionFacts};
use ipu_core::{PartitionId, Reason};
use ipu_proxy_client::{
    self as api, ClientError, DeletePartition, DeletedDocument, HoldState, OwnerDocument, PartitionDocument,
    ProxyClient, PutPartition, ResetPartition, WaitingDocument,
};

use super::host_job::Address;
use crate::commands::gc;
use crate::connection::{Connection, does_not_fit, simulated_mark};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::run_record::{LEASE_SECONDS, OWNER_KIND};

/// Interval between two checks of an active partition, which can fail while its workers do not notice. Each
/// check renews the lease at a proxy of another host.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval between two sweeps of a queued run for killed runs ahead of it.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// Time after which a run reports what its controller does, or that it does not answer.
const SLOW_OPERATION: Duration = Duration::from_secs(2);

/// Effect of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The step changed the state.
    Changed,
    /// The step changed nothing.
    Unchanged,
}

/// The partitions of one run.
pub(crate) struct Partitions<'a> {
    connection: &'a Connection,
    output: Output,
    /// Set if a request that does not fit now ends the run.
    no_wait: bool,
    facts: BTreeMap<u32, PartitionFacts>,
    /// The demands of requests of higher priority.
    preempted: BTreeMap<u32, Reason>,
    /// Last request of each instance that has or requests a partition.
    requests: BTreeMap<u32, (PartitionId, PutPartition)>,
    /// Addresses of the controllers of active partitions.
    addresses: BTreeMap<u32, Address>,
    checked: BTreeMap<u32, Instant>,
    /// Instances whose partition was active: the end of the others is no release.
    held: BTreeSet<u32>,
    /// Starts of operations of the controller.
    pending: BTreeMap<u32, Instant>,
    /// Messages of instances that wait for the queue or the controller.
    waiting: BTreeMap<u32, String>,
    swept: Instant,
}

impl<'a> Partitions<'a> {
    pub(crate) fn new(connection: &'a Connection, no_wait: bool, output: &Output) -> Self {
        Self {
            connection,
            output: output.clone(),
            no_wait,
            facts: BTreeMap::new(),
            preempted: BTreeMap::new(),
            requests: BTreeMap::new(),
            addresses: BTreeMap::new(),
            checked: BTreeMap::new(),
            held: BTreeSet::new(),
            pending: BTreeMap::new(),
            waiting: BTreeMap::new(),
            swept: Instant::now(),
        }
    }

    /// Returns the last observed state of the partitions, by instance.
    pub(crate) const fn facts(&self) -> &BTreeMap<u32, PartitionFacts> {
        &self.facts
    }

    /// Returns the demands of requests of higher priority, by instance.
    pub(crate) const fn preempted(&self) -> &BTreeMap<u32, Reason> {
        &self.preempted
    }

    /// Returns the messages of instances that wait for the queue or the controller.
    pub(crate) const fn waiting(&self) -> &BTreeMap<u32, String> {
        &self.waiting
    }

    /// Returns the address of the controller of an active partition, for its processes.
    pub(crate) fn address(&self, instance: u32) -> Result<&Address, Failure> {
        self.addresses.get(&instance).ok_or_else(|| {
            let message =
                format!("the proxy does not report the address of the controller of instance {instance}");
            Failure::new(Code::Unavailable, message)
        })
    }

    /// Polls partitions that are being released and, at [`CHECK_INTERVAL`], active ones.
    pub(crate) async fn observe(&mut self) -> Result<BTreeMap<u32, PartitionFacts>, Failure> {
        for (instance, (id, request)) in self.requests.clone() {
            match self.facts.get(&instance) {
                Some(PartitionFacts::Releasing) => {
                    self.release(instance, request.attempt, &id).await?;
                }
                Some(PartitionFacts::Active { .. }) if self.is_due(instance) => {
                    self.request(instance, id, request).await?;
                }
                _ => {}
            }
        }
        let is_queued = self
            .facts
            .values()
            .any(|facts| matches!(facts, PartitionFacts::Waiting { .. }));
        if is_queued && self.swept.elapsed() >= SWEEP_INTERVAL {
            // A blocking run may have been killed.
            self.swept = Instant::now();
            gc::sweep(self.connection).await?.report(&self.output);
        }
        Ok(self.facts.clone())
    }

    fn is_due(&self, instance: u32) -> bool {
        self.checked
            .get(&instance)
            .is_none_or(|at| at.elapsed() >= CHECK_INTERVAL)
    }

    /// Requests the partition of an instance for `attempt`.
    pub(crate) async fn ensure(
        &mut self,
        job: &JobSpec,
        instance: u32,
        attempt: u32,
        spec: &PartitionSpec,
    ) -> Result<Progress, Failure> {
        let mut request = PutPartition::new(owner(job), spec.size.get());
        request.instance = instance;
        request.attempt = attempt;
        request.gcds = Some(spec.gcds);
        request.replicas = Some(spec.replicas);
        request.reconfigurable = spec.reconfigurable;
        request.allocation = spec.allocation.as_ref().map(ToString::to_string);
        request.priority = job.priority();
        request.max_runtime_seconds = job.max_runtime().map(|runtime| runtime.as_secs());
        request.account = job.account().map(str::to_owned);
        request.preemptible = job.preemptible();
        if self.connection.is_local() {
            request.process_id = Some(std::process::id());
        } else {
            request.lease_seconds = Some(LEASE_SECONDS);
        }
        self.request(instance, job.partition_id(instance), request).await
    }

    async fn request(
        &mut self,
        instance: u32,
        id: PartitionId,
        request: PutPartition,
    ) -> Result<Progress, Failure> {
        let (attempt, size) = (request.attempt, request.size);
        // Recorded before the call: even a failed call may leave a partition to release.
        self.requests.insert(instance, (id.clone(), request.clone()));
        self.facts
            .entry(instance)
            .or_insert(PartitionFacts::Pending { attempt });
        self.checked.insert(instance, Instant::now());
        let on_no_capacity = match self.no_wait {
            true => api::OnNoCapacity::Reject,
            false => api::OnNoCapacity::Queue(Duration::ZERO),
        };
        let put = async |proxy: &ProxyClient| proxy.put(&id, &request, on_no_capacity).await;
        match self.call(put).await {
            Ok(document) => self.apply_document(instance, document).await,
            Err(error) => match (error.reason(), error.problem()) {
                (Some(reason), _) => {
                    self.forget(instance);
                    Err(rejected(size, reason))
                }
                (None, Some(problem)) if problem.code == "PartitionFailed" => {
                    let errors = problem.errors.clone();
                    Ok(self.set_facts(instance, PartitionFacts::Failed { attempt, errors }))
                }
                _ => Err(error.into()),
            },
        }
    }

    /// Resets the partition for `attempt`.
    pub(crate) async fn reset(
        &mut self,
        instance: u32,
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Progress, Failure> {
        let Some((_, request)) = self.requests.get_mut(&instance) else {
            return Err(Failure::new(
                Code::Bug,
                format!("reset of partition {partition}, which was never requested"),
            ));
        };
        request.attempt = attempt;
        let mut reset = ResetPartition::default();
        reset.attempt = Some(attempt);
        reset.uid = Some(request.owner.uid.clone());
        let call = async |proxy: &ProxyClient| proxy.reset(partition, &reset).await;
        let document = self.call(call).await?;
        self.apply_document(instance, document).await
    }

    async fn apply_document(
        &mut self,
        instance: u32,
        document: PartitionDocument,
    ) -> Result<Progress, Failure> {
        let Some((_, request)) = self.requests.get(&instance) else {
            return Ok(Progress::Unchanged);
        };
        let attempt = request.attempt;
        self.waiting.remove(&instance);
        let facts = match document.state {
            HoldState::Active => self.on_active(instance, document).await,
            HoldState::Failed => PartitionFacts::Failed {
                attempt,
                errors: document.errors,
            },
            HoldState::Releasing => PartitionFacts::Releasing,
            HoldState::Waiting => match document.waiting {
                // A request that fits is queued again if the controller rejects it.
                Some(waiting) if self.no_wait || waiting.reason.code.is_permanent() => {
                    return Err(rejected(document.size, &waiting.reason));
                }
                Some(waiting) => self.on_queued(instance, attempt, waiting),
                None => PartitionFacts::Pending { attempt },
            },
            _ => {
                let started = self.pending.entry(instance).or_insert_with(Instant::now);
                let is_slow = started.elapsed() >= SLOW_OPERATION;
                if let Some(reason) = document.reason.filter(|_| is_slow) {
                    self.waiting.insert(instance, display::reason(&reason));
                }
                PartitionFacts::Pending { attempt }
            }
        };
        if !matches!(facts, PartitionFacts::Pending { .. }) {
            self.pending.remove(&instance);
        }
        Ok(self.set_facts(instance, facts))
    }

    fn on_queued(&mut self, instance: u32, attempt: u32, waiting: WaitingDocument) -> PartitionFacts {
        self.waiting.insert(instance, display::wait_status(&waiting, &[]));
        PartitionFacts::Waiting {
            reason: waiting.reason,
            attempt,
        }
    }

    async fn on_active(&mut self, instance: u32, document: PartitionDocument) -> PartitionFacts {
        self.held.insert(instance);
        match &document.preemption {
            Some(demand) => self.preempted.insert(instance, demand.reason.clone()),
            None => self.preempted.remove(&instance),
        };
        if !matches!(self.facts.get(&instance), Some(PartitionFacts::Active { .. })) {
            self.report_active(&document).await;
        }
        let controller = document.controller.as_ref();
        if let Some((host, port)) = controller.and_then(|one| Some((one.host.clone()?, one.port?))) {
            let state = &self.connection.state;
            let is_simulated = self.connection.is_simulated();
            let mark = is_simulated.then(|| simulated_mark(&host, port, state));
            self.addresses.insert(instance, Address { host, port, mark });
        }
        let controller = document.controller.map(|controller| controller.name);
        match controller {
            Some(controller) => PartitionFacts::Active {
                attempt: document.attempt,
                since: document.since,
                controller,
            },
            None => PartitionFacts::Pending {
                attempt: document.attempt,
            },
        }
    }

    /// Releases the partition of an instance.
    pub(crate) async fn release(
        &mut self,
        instance: u32,
        attempt: u32,
        partition: &PartitionId,
    ) -> Result<Progress, Failure> {
        let Some((_, request)) = self.requests.get(&instance) else {
            self.facts.remove(&instance);
            return Ok(Progress::Changed);
        };
        let mut deletion = DeletePartition::default();
        deletion.uid = Some(request.owner.uid.clone());
        deletion.attempt = Some(attempt);
        let call = async |proxy: &ProxyClient| proxy.delete(partition, &deletion).await;
        let deleted: DeletedDocument = self.call(call).await?;
        if deleted.state != HoldState::Gone {
            let detail = deleted.detail.unwrap_or_default();
            self.waiting
                .insert(instance, format!("Releasing partition {partition}: {detail}"));
            return Ok(self.set_facts(instance, PartitionFacts::Releasing));
        }
        if self.held.contains(&instance) {
            self.output.say(&format!("partition {partition} released"));
        }
        self.forget(instance);
        Ok(Progress::Changed)
    }

    /// Returns the partitions that could not be released.
    pub(crate) fn unreleased(&self) -> Vec<PartitionId> {
        self.requests.values().map(|(id, _)| id.clone()).collect()
    }

    fn forget(&mut self, instance: u32) {
        self.facts.remove(&instance);
        self.preempted.remove(&instance);
        self.requests.remove(&instance);
        self.addresses.remove(&instance);
        self.checked.remove(&instance);
        self.held.remove(&instance);
        self.pending.remove(&instance);
        self.waiting.remove(&instance);
    }

    fn set_facts(&mut self, instance: u32, facts: PartitionFacts) -> Progress {
        let previous = self.facts.insert(instance, facts.clone());
        if previous == Some(facts) {
            Progress::Unchanged
        } else {
            Progress::Changed
        }
    }

    /// Calls the proxy, and once again if the local server had ended.
    async fn call<T>(
        &self,
        call: impl AsyncFn(&ProxyClient) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        match call(&self.connection.proxy).await {
            Err(ClientError::Unreachable { .. }) if self.connection.is_local() => {
                if let Err(failure) = self.connection.restart_local_server().await {
                    self.output.warn(&failure.chain());
                }
                call(&self.connection.proxy).await
            }
            result => result,
        }
    }

    async fn report_active(&self, document: &PartitionDocument) {
        let mut places = document.ipus.clone();
        if places.is_empty() {
            // An error here only leaves the IPUs out of the message.
            let observed = self.connection.proxy.partition(&document.id).await;
            places = observed.map(|partition| partition.ipus).unwrap_or_default();
        }
        let attempt = if document.attempt == 0 {
            String::new()
        } else {
            format!(", reset for attempt {}", document.attempt)
        };
        let text = display::active(document, &places);
        self.output.say(&format!("{text}{attempt}"));
    }
}

/// Returns the owner of the partitions of a job that runs on this host.
fn owner(job: &JobSpec) -> OwnerDocument {
    let key = job.key();
    OwnerDocument::new(
        OWNER_KIND,
        key.namespace.as_str(),
        key.name.as_str(),
        key.uid.as_str(),
    )
}

/// Returns the failure of a request that can never fit, or that does not fit now and must not queue.
fn rejected(size: u32, reason: &Reason) -> Failure {
    does_not_fit(&format!("a partition of {}", display::count(size, "IPU")), reason)
}
