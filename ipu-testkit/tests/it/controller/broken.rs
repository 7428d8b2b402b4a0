//! Controllers that break one rule each, around the fake one.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use ipu_core::{AgentId, AllocationId, IpuPlace, Partition, PartitionId, PartitionSpec, PartitionState};
use ipu_testkit::FakeController;
use ipu_vipu_client::{AgentIpus, CreatePartition, IpuofConfig, PartitionStatus, VipuController, VipuError};

/// One way to be broken: the calls that are not as they should be.
#[async_trait]
pub(super) trait Flaw: Default + Send + Sync + 'static {
    async fn version(&self, right: &FakeController) -> Result<String, VipuError> {
        right.version().await
    }

    async fn list(
        &self,
        right: &FakeController,
        of: Option<AllocationId>,
    ) -> Result<Vec<Partition>, VipuError> {
        right.list_partitions(of).await
    }

    async fn create(
        &self,
        right: &FakeController,
        request: CreatePartition,
    ) -> Result<PartitionId, VipuError> {
        right.create_partition(request).await
    }

    async fn status(&self, right: &FakeController, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        right.partition_status(id).await
    }

    async fn ipuof(
        &self,
        right: &FakeController,
        id: &PartitionId,
        gcd: Option<u32>,
    ) -> Result<IpuofConfig, VipuError> {
        right.ipuof_config(id, gcd).await
    }

    async fn reset(&self, right: &FakeController, id: &PartitionId) -> Result<(), VipuError> {
        right.reset_partition(id).await
    }

    async fn remove(&self, right: &FakeController, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        right.remove_partition(id, force).await
    }

    fn restart(&self, _right: &FakeController) {}
}

/// A controller with a flaw.
pub(super) struct Flawed<F> {
    pub(super) flaw: F,
    pub(super) right: FakeController,
}

#[async_trait]
impl<F: Flaw> VipuController for Flawed<F> {
    async fn version(&self) -> Result<String, VipuError> {
        self.flaw.version(&self.right).await
    }

    async fn list_partitions(&self, allocation: Option<AllocationId>) -> Result<Vec<Partition>, VipuError> {
        self.flaw.list(&self.right, allocation).await
    }

    async fn create_partition(&self, request: CreatePartition) -> Result<PartitionId, VipuError> {
        self.flaw.create(&self.right, request).await
    }

    async fn partition_status(&self, id: &PartitionId) -> Result<PartitionStatus, VipuError> {
        self.flaw.status(&self.right, id).await
    }

    async fn ipuof_config(&self, id: &PartitionId, gcd: Option<u32>) -> Result<IpuofConfig, VipuError> {
        self.flaw.ipuof(&self.right, id, gcd).await
    }

    async fn reset_partition(&self, id: &PartitionId) -> Result<(), VipuError> {
        self.flaw.reset(&self.right, id).await
    }

    async fn remove_partition(&self, id: &PartitionId, force: bool) -> Result<(), VipuError> {
        self.flaw.remove(&self.right, id, force).await
    }

    async fn ipu_attributes(&self, agents: &[AgentId]) -> Result<Vec<AgentIpus>, VipuError> {
        self.right.ipu_attributes(agents).await
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

/// Declares flaws that are one call each.
macro_rules! flaws {
    ($($(#[$doc:meta])* struct $name:ident { $($fields:tt)* } $(async fn $call:ident($self:ident, $right:ident $(, $argument:ident: $type:ty)*) -> $answer:ty $body:block)*)*) => {
        $($(#[$doc])*
        #[derive(Default)]
        pub(super) struct $name { $($fields)* }

        #[async_trait]
        impl Flaw for $name {
            $(async fn $call(&$self, $right: &FakeController $(, $argument: $type)*) -> Result<$answer, VipuError> $body)*
        })*
    };
}

flaws! {
    /// A second creation of an id succeeds.
    struct SecondCreateSucceeds {}
    async fn create(self, right, request: CreatePartition) -> PartitionId {
        match right.create_partition(request).await {
            Err(VipuError::AlreadyExists { id }) => Ok(id),
            answer => answer,
        }
    }

    /// To remove what is not there succeeds.
    struct UnknownIsRemoved {}
    async fn remove(self, right, id: &PartitionId, force: bool) -> () {
        match right.remove_partition(id, force).await {
            Err(VipuError::NotFound { .. }) => Ok(()),
            answer => answer,
        }
    }

    /// A long listing is cut.
    struct ListOmitsOne {}
    async fn list(self, right, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = right.list_partitions(of).await?;
        if listed.len() > 4 {
            listed.pop();
        }
        Ok(listed)
    }

    /// The status is kept for too long.
    struct RemovedIsActive { seen: Mutex<BTreeMap<PartitionId, PartitionStatus>> }
    async fn status(self, right, id: &PartitionId) -> PartitionStatus {
        let answer = right.partition_status(id).await;
        let mut seen = self.seen.lock().unwrap();
        match answer {
            Ok(status) if status.state == PartitionState::Active => {
                seen.insert(id.clone(), status.clone());
                Ok(status)
            }
            Err(VipuError::NotFound { .. }) => seen.get(id).cloned().ok_or_else(|| not_found(id)),
            answer => answer,
        }
    }

    /// Looks for room, and takes it later, when somebody else may have.
    struct DoubleBooks { places: Mutex<BTreeMap<PartitionId, Vec<IpuPlace>>> }
    async fn create(self, right, request: CreatePartition) -> PartitionId {
        let taken: BTreeSet<_> = self.list(right, None).await?.into_iter().flat_map(|one| one.ipus).collect();
        tokio::task::yield_now().await;
        let size = request.spec.size.get();
        let block = |first: u32| (first..first + size).map(|ipu| IpuPlace { link_domain: 0, ipu });
        let free = (0..64).step_by(size as usize).find(|first| block(*first).all(|place| !taken.contains(&place)));
        let id = right.create_partition(request.clone()).await?;
        if let (Some(first), true, true) = (free, request.ipus.is_empty(), size < 64) {
            self.places.lock().unwrap().insert(id.clone(), block(first).collect());
        }
        Ok(id)
    }
    async fn list(self, right, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = right.list_partitions(of).await?;
        let places = self.places.lock().unwrap();
        for partition in &mut listed {
            if let Some(ipus) = places.get(&partition.id).filter(|ipus| ipus.len() == partition.ipus.len()) {
                partition.ipus.clone_from(ipus);
            }
        }
        Ok(listed)
    }

    /// A lack of room is told as a lack of connection.
    struct NoRoomIsUnreachable {}
    async fn create(self, right, request: CreatePartition) -> PartitionId {
        match right.create_partition(request).await {
            Err(VipuError::NoCapacity { .. }) => Err(unreachable()),
            answer => answer,
        }
    }

    /// Room is looked for before the id.
    struct RoomBeforeId {}
    async fn create(self, right, request: CreatePartition) -> PartitionId {
        let full = right.list_partitions(None).await?.iter().map(|one| one.ipus.len()).sum::<usize>() == 16;
        match right.create_partition(request).await {
            Err(VipuError::AlreadyExists { .. }) if full => Err(VipuError::NoCapacity { detail: "full".into() }),
            answer => answer,
        }
    }

    /// A reset never ends.
    struct BusyForEver { reset: Mutex<BTreeSet<PartitionId>> }
    async fn reset(self, right, id: &PartitionId) -> () {
        right.reset_partition(id).await?;
        self.reset.lock().unwrap().insert(id.clone());
        Ok(())
    }
    async fn status(self, right, id: &PartitionId) -> PartitionStatus {
        let mut status = right.partition_status(id).await?;
        if self.reset.lock().unwrap().contains(id) && status.state == PartitionState::Active {
            status.state = PartitionState::Resetting;
        }
        Ok(status)
    }

    /// A reset under way is begun again.
    struct ResetsAgain {}
    async fn reset(self, right, id: &PartitionId) -> () {
        match right.reset_partition(id).await {
            Err(VipuError::Refused { .. }) => Ok(()),
            answer => answer,
        }
    }

    /// A reset gives other IPUs.
    struct ResetMoves { moved: AtomicBool }
    async fn reset(self, right, id: &PartitionId) -> () {
        right.reset_partition(id).await?;
        self.moved.store(true, Ordering::SeqCst);
        Ok(())
    }
    async fn list(self, right, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = right.list_partitions(of).await?;
        if self.moved.load(Ordering::SeqCst) {
            listed.iter_mut().flat_map(|one| &mut one.ipus).for_each(|place| place.ipu ^= 4);
        }
        Ok(listed)
    }

    /// The status is of another partition.
    struct WrongIdInStatus {}
    async fn status(self, right, id: &PartitionId) -> PartitionStatus {
        let mut status = right.partition_status(id).await?;
        status.id = PartitionId::new(format!("{}x", &id.as_str()[..1])).unwrap();
        Ok(status)
    }

    /// What is removed is forgotten, and its IPUs with it.
    struct KeepsIpus { hidden: Mutex<BTreeSet<PartitionId>> }
    async fn remove(self, right, id: &PartitionId, _force: bool) -> () {
        self.status(right, id).await?;
        self.hidden.lock().unwrap().insert(id.clone());
        Ok(())
    }
    async fn status(self, right, id: &PartitionId) -> PartitionStatus {
        if self.hidden.lock().unwrap().contains(id) {
            return Err(not_found(id));
        }
        right.partition_status(id).await
    }
    async fn list(self, right, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = right.list_partitions(of).await?;
        listed.retain(|one| !self.hidden.lock().unwrap().contains(&one.id));
        Ok(listed)
    }

    /// Every GCD is told to be the first.
    struct WrongGcd {}
    async fn ipuof(self, right, id: &PartitionId, gcd: Option<u32>) -> IpuofConfig {
        right.ipuof_config(id, gcd).await?;
        right.ipuof_config(id, gcd.map(|_| 0)).await
    }

    /// A lost reply is told as a refusal, which nobody tries again.
    struct LostReplyIsFinal {}
    async fn create(self, right, request: CreatePartition) -> PartitionId {
        match right.create_partition(request).await {
            Err(VipuError::Unreachable { detail, .. }) => Err(VipuError::Refused { detail }),
            answer => answer,
        }
    }

    /// A broken connection stays broken.
    struct NeverReconnects { broken: AtomicBool }
    async fn status(self, right, id: &PartitionId) -> PartitionStatus {
        if self.broken.load(Ordering::SeqCst) {
            return Err(unreachable());
        }
        let answer = right.partition_status(id).await;
        if matches!(answer, Err(VipuError::Unreachable { .. })) {
            self.broken.store(true, Ordering::SeqCst);
        }
        answer
    }

    /// What is asked for is there at once, before it is made.
    struct ActiveAtOnce {}
    async fn status(self, right, id: &PartitionId) -> PartitionStatus {
        let mut status = right.partition_status(id).await?;
        if status.state == PartitionState::Creating {
            status.state = PartitionState::Active;
        }
        Ok(status)
    }

    /// What is being removed is told to be gone.
    struct GoneTooEarly {}
    async fn status(self, right, id: &PartitionId) -> PartitionStatus {
        let status = right.partition_status(id).await?;
        match status.state {
            PartitionState::Removing => Err(not_found(id)),
            _ => Ok(status),
        }
    }

    /// The controller chooses, whatever it was told.
    struct IgnoresPlaces {}
    async fn create(self, right, request: CreatePartition) -> PartitionId {
        let (id, spec) = (request.id, request.spec);
        right.create_partition(CreatePartition { id, spec, ipus: Vec::new() }).await
    }

    /// What was asked for beyond the size is lost.
    struct ForgetsTheSpec {}
    async fn list(self, right, of: Option<AllocationId>) -> Vec<Partition> {
        let mut listed = right.list_partitions(of).await?;
        for partition in &mut listed {
            let allocation = partition.spec.allocation.take();
            partition.spec = PartitionSpec { allocation, ..PartitionSpec::of_size(partition.spec.size) };
        }
        Ok(listed)
    }

    /// Every allocation is told to have all partitions.
    struct IgnoresAllocations {}
    async fn list(self, right, of: Option<AllocationId>) -> Vec<Partition> {
        right.list_partitions(of).await?;
        right.list_partitions(None).await
    }

    /// A refusal leaves a small partition behind.
    struct RefusalLeavesSomething {}
    async fn create(self, right, request: CreatePartition) -> PartitionId {
        let answer = right.create_partition(request.clone()).await;
        if matches!(answer, Err(VipuError::NoCapacity { .. })) {
            let spec = PartitionSpec::of_size(1.try_into().unwrap());
            right.create_partition(CreatePartition { spec, ..request }).await.ok();
        }
        answer
    }

    /// A creation whose caller dies blocks its id.
    struct DiesInTheMiddle { begun: Mutex<BTreeSet<PartitionId>> }
    async fn create(self, right, request: CreatePartition) -> PartitionId {
        let id = request.id.clone();
        if !self.begun.lock().unwrap().insert(id.clone()) {
            return Err(VipuError::Failed { detail: "being created".into() });
        }
        let answer = right.create_partition(request).await;
        self.begun.lock().unwrap().remove(&id);
        answer
    }

    /// Now and then a partition that is there is not known.
    struct Flickers { calls: AtomicU32 }
    async fn status(self, right, id: &PartitionId) -> PartitionStatus {
        if self.calls.fetch_add(1, Ordering::SeqCst) % 7 == 6 {
            return Err(not_found(id));
        }
        right.partition_status(id).await
    }

    /// Cannot bear many IPUs.
    struct Panics {}
    async fn create(self, right, request: CreatePartition) -> PartitionId {
        assert!(request.spec.size.get() <= 64, "more than a link domain");
        right.create_partition(request).await
    }

    /// Never says what it is.
    struct Hangs {}
    async fn version(self, _right) -> String {
        pending().await
    }
}

/// A restart is the end of all partitions.
#[derive(Default)]
pub(super) struct ForgetsOnRestart;

impl Flaw for ForgetsOnRestart {
    fn restart(&self, right: &FakeController) {
        right.lose_partitions();
    }
}
