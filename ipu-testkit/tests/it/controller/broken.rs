//! Mutants of the fake controller that break one rule each.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use ipu_core::{AgentId, AllocationId, IpuPlace, Partition, PartitionId, PartitionSpec, PartitionState};
use ipu_testkit::FakeController;
use ipu_vipu_client::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController, VipuError};

/// Mutation of a controller: overrides the calls that violate a rule.
#[async_trait]
pub(super) trait Mutation: Default + Send + Sync + 'static {
    async fn version(&self, fake: &FakeController) -> Result<String, VipuError> {
        fake.version().await
    }

    async fn list(
        &self,
        fake: &FakeController,
        of: Option<AllocationId>,
    ) -> Result<Vec<Partition>, VipuError> {
        fake.list_partitions(of).await
    }

    async fn create(
        &self,
        fake: &FakeController,
        request: CreatePartition,
    ) -> Result<PartitionId, VipuError> {
        fake.create_partition(request).await
    }

    async fn status(&self, fake: &FakeController, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        fake.partition_status(id).await
    }

    async fn ipuof(
        &self,
        fake: &FakeController,
        id: &PartitionId,
        gcd: Option<u32>,
    ) -> Result<IpuofConfig, VipuError> {
        fake.ipuof_config(id, gcd).await
    }

    async fn reset(&self, fake: &FakeController, id: &PartitionId) -> Result<(), VipuError> {
        fake.reset_partition(id).await
    }

    async fn remove(&self, fake: &FakeController, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        fake.remove_partition(id, force).await
    }

    fn restart(&self, _right: &FakeController) {}
}

/// Controller with a mutation.
pub(super) struct Mutant<F> {
    pub(super) mutation: F,
    pub(super) fake: FakeController,
}

#[async_trait]
impl<F: Mutation> VipuController for Mutant<F> {
    async fn version(&self) -> Result<String, VipuError> {
        self.mutation.version(&self.fake).await
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.mutation.list(&self.fake, allocation).await
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        self.mutation.create(&self.fake, request).await
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.mutation.status(&self.fake, id).await
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.mutation.ipuof(&self.fake, id, gcd).await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.mutation.reset(&self.fake, id).await
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        self.mutation.remove(&self.fake, id, force).await
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.fake.ipu_attributes(agents).await
    }
}

fn unreachable() -> VipuError {
    VipuError::Unreachable {
        endpoint: "flawed".into(),
        detail: "flawed".into(),
    }
}

fn not_found(id: &PartitionId) -> VipuError {
    VipuError::NotFound { id: id.clone() }
}

/// Declares mutations of one call each.
macro_rules! mutations {
    ($($(#[$doc:meta])* struct $name:ident { $($fields:tt)* } $(async fn $call:ident($self:ident, $fake:ident $(, $argument:ident: $type:ty)*) -> $answer:ty $body:block)*)*) => {
        $($(#[$doc])*
        #[derive(Default)]
        pub(super) struct $name { $($fields)* }

        #[async_trait]
        impl Mutation for $name {
            $(async fn $call(&$self, $fake: &FakeController $(, $argument: $type)*) -> Result<$answer, VipuError> $body)*
        })*
    };
}

mutations! {
    /// A second create of an id succeeds.
    struct SecondCreateSucceeds {}
    async fn create(self, fake, request: CreatePartition) -> PartitionId {
        match fake.create_partition(request).await {
            Err(VipuError::AlreadyExists { id }) => Ok(id),
            answer => answer,
        }
    }

    /// Removing a missing partition succeeds.
    struct UnknownIsRemoved {}
    async fn remove(self, fake, id: &PartitionId, force: bool) -> () {
        match fake.remove_partition(id, force).await {
            Err(VipuError::NotFound { .. }) => Ok(()),
            answer => answer,
        }
    }

    /// A long listing is truncated.
    struct ListOmitsOne {}
    async fn list(self, fake, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = fake.list_partitions(of).await?;
        if listed.len() > 4 {
            listed.pop();
        }
        Ok(listed)
    }

    /// The status is cached for too long.
    struct RemovedIsActive { cached: Mutex<BTreeMap<PartitionId, PartitionStatus>> }
    async fn status(self, fake, id: &PartitionId) -> PartitionStatus {
        let answer = fake.partition_status(id).await;
        let mut cached = self.cached.lock().unwrap();
        match answer {
            Ok(status) if status.state == PartitionState::Active => {
                cached.insert(id.clone(), status.clone());
                Ok(status)
            }
            Err(VipuError::NotFound { .. }) => cached.get(id).cloned().ok_or_else(|| not_found(id)),
            answer => answer,
        }
    }

    /// Checks capacity and allocates later, without a lock.
    struct DoubleBooks { places: Mutex<BTreeMap<PartitionId, Vec<IpuPlace>>> }
    async fn create(self, fake, request: CreatePartition) -> PartitionId {
        let used: BTreeSet<_> = self.list(fake, None).await?.into_iter().flat_map(|one| one.ipus).collect();
        tokio::task::yield_now().await;
        let size = request.spec.size.get();
        let block = |first: u32| (first..first + size).map(|ipu| IpuPlace { link_domain: 0, ipu });
        let free = (0..64).step_by(size as usize).find(|first| block(*first).all(|place| !used.contains(&place)));
        let id = fake.create_partition(request.clone()).await?;
        if let (Some(first), true, true) = (free, request.ipus.is_empty(), size < 64) {
            self.places.lock().unwrap().insert(id.clone(), block(first).collect());
        }
        Ok(id)
    }
    async fn list(self, fake, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = fake.list_partitions(of).await?;
        let places = self.places.lock().unwrap();
        for partition in &mut listed {
            if let Some(ipus) = places.get(&partition.id).filter(|ipus| ipus.len() == partition.ipus.len()) {
                partition.ipus.clone_from(ipus);
            }
        }
        Ok(listed)
    }

    /// A lack of capacity is reported as unreachable.
    struct NoCapacityIsUnreachable {}
    async fn create(self, fake, request: CreatePartition) -> PartitionId {
        match fake.create_partition(request).await {
            Err(VipuError::NoCapacity { .. }) => Err(unreachable()),
            answer => answer,
        }
    }

    /// Capacity is checked before the id.
    struct CapacityBeforeId {}
    async fn create(self, fake, request: CreatePartition) -> PartitionId {
        let full = fake.list_partitions(None).await?.iter().map(|one| one.ipus.len()).sum::<usize>() == 16;
        match fake.create_partition(request).await {
            Err(VipuError::AlreadyExists { .. }) if full => Err(VipuError::NoCapacity { detail: "full".into() }),
            answer => answer,
        }
    }

    /// A reset never ends.
    struct ResetNeverEnds { reset: Mutex<BTreeSet<PartitionId>> }
    async fn reset(self, fake, id: &PartitionId) -> () {
        fake.reset_partition(id).await?;
        self.reset.lock().unwrap().insert(id.clone());
        Ok(())
    }
    async fn status(self, fake, id: &PartitionId) -> PartitionStatus {
        let mut status = fake.partition_status(id).await?;
        if self.reset.lock().unwrap().contains(id) && status.state == PartitionState::Active {
            status.state = PartitionState::Resetting;
        }
        Ok(status)
    }

    /// A reset in progress is started again.
    struct ResetsAgain {}
    async fn reset(self, fake, id: &PartitionId) -> () {
        match fake.reset_partition(id).await {
            Err(VipuError::Refused { .. }) => Ok(()),
            answer => answer,
        }
    }

    /// A reset changes the IPUs.
    struct ResetMoves { moved: AtomicBool }
    async fn reset(self, fake, id: &PartitionId) -> () {
        fake.reset_partition(id).await?;
        self.moved.store(true, Ordering::SeqCst);
        Ok(())
    }
    async fn list(self, fake, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = fake.list_partitions(of).await?;
        if self.moved.load(Ordering::SeqCst) {
            listed.iter_mut().flat_map(|one| &mut one.ipus).for_each(|place| place.ipu ^= 4);
        }
        Ok(listed)
    }

    /// The status describes another partition.
    struct WrongIdInStatus {}
    async fn status(self, fake, id: &PartitionId) -> PartitionStatus {
        let mut status = fake.partition_status(id).await?;
        status.id = PartitionId::new(format!("{}x", &id.as_str()[..1])).unwrap();
        Ok(status)
    }

    /// A removed partition is forgotten, but keeps its IPUs.
    struct KeepsIpus { hidden: Mutex<BTreeSet<PartitionId>> }
    async fn remove(self, fake, id: &PartitionId, _force: bool) -> () {
        self.status(fake, id).await?;
        self.hidden.lock().unwrap().insert(id.clone());
        Ok(())
    }
    async fn status(self, fake, id: &PartitionId) -> PartitionStatus {
        if self.hidden.lock().unwrap().contains(id) {
            return Err(not_found(id));
        }
        fake.partition_status(id).await
    }
    async fn list(self, fake, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = fake.list_partitions(of).await?;
        listed.retain(|one| !self.hidden.lock().unwrap().contains(&one.id));
        Ok(listed)
    }

    /// Every GCD is reported as the first.
    struct WrongGcd {}
    async fn ipuof(self, fake, id: &PartitionId, gcd: Option<u32>) -> IpuofConfig {
        fake.ipuof_config(id, gcd).await?;
        fake.ipuof_config(id, gcd.map(|_| 0)).await
    }

    /// A lost reply is reported as a rejection, which callers do not retry.
    struct LostReplyIsFinal {}
    async fn create(self, fake, request: CreatePartition) -> PartitionId {
        match fake.create_partition(request).await {
            Err(VipuError::Unreachable { detail, .. }) => Err(VipuError::Refused { detail }),
            answer => answer,
        }
    }

    /// A broken connection stays broken.
    struct NeverReconnects { broken: AtomicBool }
    async fn status(self, fake, id: &PartitionId) -> PartitionStatus {
        if self.broken.load(Ordering::SeqCst) {
            return Err(unreachable());
        }
        let answer = fake.partition_status(id).await;
        if matches!(answer, Err(VipuError::Unreachable { .. })) {
            self.broken.store(true, Ordering::SeqCst);
        }
        answer
    }

    /// A requested partition is active before it is created.
    struct ActiveAtOnce {}
    async fn status(self, fake, id: &PartitionId) -> PartitionStatus {
        let mut status = fake.partition_status(id).await?;
        if status.state == PartitionState::Creating {
            status.state = PartitionState::Active;
        }
        Ok(status)
    }

    /// A partition that is being removed is reported as missing.
    struct MissingTooEarly {}
    async fn status(self, fake, id: &PartitionId) -> PartitionStatus {
        let status = fake.partition_status(id).await?;
        match status.state {
            PartitionState::Removing => Err(not_found(id)),
            _ => Ok(status),
        }
    }

    /// The controller chooses IPUs despite explicit ones.
    struct IgnoresPlaces {}
    async fn create(self, fake, request: CreatePartition) -> PartitionId {
        let (id, spec) = (request.id, request.spec);
        fake.create_partition(CreatePartition { id, spec, ipus: Vec::new() }).await
    }

    /// Fields of the spec other than the size are lost.
    struct LosesSpecFields {}
    async fn list(self, fake, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = fake.list_partitions(of).await?;
        for partition in &mut listed {
            let allocation = partition.spec.allocation.take();
            partition.spec = PartitionSpec { allocation, ..PartitionSpec::of_size(partition.spec.size) };
        }
        Ok(listed)
    }

    /// Every allocation lists all partitions.
    struct IgnoresAllocations {}
    async fn list(self, fake, of: Option<AllocationId>) -> Vec<Partition> {
        fake.list_partitions(of).await?;
        fake.list_partitions(None).await
    }

    /// A rejected create leaves a small partition behind.
    struct RejectionLeavesPartition {}
    async fn create(self, fake, request: CreatePartition) -> PartitionId {
        let answer = fake.create_partition(request.clone()).await;
        if matches!(answer, Err(VipuError::NoCapacity { .. })) {
            let spec = PartitionSpec::of_size(1.try_into().unwrap());
            fake.create_partition(CreatePartition { spec, ..request }).await.ok();
        }
        answer
    }

    /// A create whose caller crashes blocks its id.
    struct CrashBlocksId { begun: Mutex<BTreeSet<PartitionId>> }
    async fn create(self, fake, request: CreatePartition) -> PartitionId {
        let id = request.id.clone();
        if !self.begun.lock().unwrap().insert(id.clone()) {
            return Err(VipuError::Failed { detail: "being created".into() });
        }
        let answer = fake.create_partition(request).await;
        self.begun.lock().unwrap().remove(&id);
        answer
    }

    /// An existing partition is sometimes unknown.
    struct Flickers { calls: AtomicU32 }
    async fn status(self, fake, id: &PartitionId) -> PartitionStatus {
        if self.calls.fetch_add(1, Ordering::SeqCst) % 7 == 6 {
            return Err(not_found(id));
        }
        fake.partition_status(id).await
    }

    /// Panics on large partitions.
    struct Panics {}
    async fn create(self, fake, request: CreatePartition) -> PartitionId {
        assert!(request.spec.size.get() <= 64, "more than a link domain");
        fake.create_partition(request).await
    }

    /// Never returns its version.
    struct Hangs {}
    async fn version(self, _right) -> String {
        pending().await
    }
}

/// A restart deletes all partitions.
#[derive(Default)]
pub(super) struct ForgetsOnRestart;

impl Mutation for ForgetsOnRestart {
    fn restart(&self, fake: &FakeController) {
        fake.lose_partitions();
    }
}
