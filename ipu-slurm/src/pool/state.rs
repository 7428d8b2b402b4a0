//! Decisions about the partitions of a node.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::IpuCount;

/// A static partition of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPartition {
    /// The name of its file, which is the id of the partition.
    pub name: String,
    /// Its IPUs; none for a file of Graphcore's scripts.
    pub size: Option<IpuCount>,
}

/// The boot of the node at which the directory was used last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootState {
    /// The present one.
    Current,
    /// An earlier one: no process of a job is left.
    Earlier,
    /// None is recorded.
    Unknown,
}

/// The content of the directory of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolState {
    /// The boot of the last use.
    pub boot: BootState,
    /// The partitions in `free`, by name.
    pub free: Vec<PoolPartition>,
    /// The partitions in `allocated`, by name.
    pub allocated: Vec<PoolPartition>,
    /// The partitions of each pointer, by job id.
    pub pointers: BTreeMap<u32, Vec<String>>,
}

/// An atomic operation on the directory of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolOperation {
    /// Write the pointer of a job, all lines at once.
    WritePointer {
        /// The job.
        job_id: u32,
        /// Its partitions.
        partitions: Vec<String>,
    },
    /// Remove the pointer of a job.
    RemovePointer {
        /// The job.
        job_id: u32,
    },
    /// Move the file of a partition from `free` to `allocated`.
    Allocate {
        /// The partition.
        partition: String,
    },
    /// Move the file of a partition from `allocated` to `free`.
    Free {
        /// The partition.
        partition: String,
    },
    /// Record the present boot.
    RecordBoot,
}

/// The partitions that a job needs on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRequest {
    /// The IPUs of each; none for any size.
    pub size: Option<IpuCount>,
    /// The number of partitions.
    pub count: u32,
}

/// The partitions of a job, and the steps that allocate them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolAllocation {
    /// The steps, in their order.
    pub steps: Vec<PoolOperation>,
    /// Names of the allocated partitions.
    pub partitions: Vec<String>,
}

/// The reason that a job has no partition. Slurm and the directory then disagree, because Slurm counts them
/// too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Too few free partitions of the size.
    #[error(
        "the job needs {} of {}, and the node has {free} free; ask the administrator to run ipu-slurm pool \
         check", count_text(.request.count), size_text(.request.size)
    )]
    TooFew {
        /// The request.
        request: PoolRequest,
        /// The free partitions of the size.
        free: usize,
    },
    /// The pointer of the job names other partitions than the job needs.
    #[error(
        "the job needs {} of {}, and its pointer p{job_id} names others; ask the administrator to run \
         ipu-slurm pool check", count_text(.request.count), size_text(.request.size)
    )]
    OtherPartitions {
        /// The job.
        job_id: u32,
        /// The request.
        request: PoolRequest,
    },
}

fn count_text(count: u32) -> String {
    match count {
        1 => "1 partition".to_owned(),
        _ => format!("{count} partitions"),
    }
}

fn size_text(size: Option<IpuCount>) -> String {
    match size {
        Some(size) => format!("size {size}"),
        None => "any size".to_owned(),
    }
}

impl PoolState {
    /// Returns the steps after which the directories agree with the pointers. After a boot, everything is
    /// free.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    ///
    /// use ipu_slurm::{BootState, PoolOperation, PoolPartition, PoolState};
    ///
    /// // A Prolog was killed after it wrote the pointer, and before it moved the file.
    /// let mut state = PoolState {
    ///     boot: BootState::Current,
    ///     free: vec![PoolPartition { name: "pt2_0".to_owned(), size: None }],
    ///     allocated: Vec::new(),
    ///     pointers: BTreeMap::from([(7, vec!["pt2_0".to_owned()])]),
    /// };
    /// assert_eq!(state.repair(), [PoolOperation::Allocate { partition: "pt2_0".to_owned() }]);
    /// state.boot = BootState::Earlier;
    /// assert_eq!(state.repair(), [PoolOperation::RemovePointer { job_id: 7 }, PoolOperation::RecordBoot]);
    /// ```
    #[must_use]
    pub fn repair(&self) -> Vec<PoolOperation> {
        let mut steps = Vec::new();
        let mut named: BTreeSet<&str> = BTreeSet::new();
        if self.boot == BootState::Earlier {
            steps.extend(
                self.pointers
                    .keys()
                    .map(|id| PoolOperation::RemovePointer { job_id: *id }),
            );
        } else {
            named.extend(self.pointers.values().flatten().map(String::as_str));
        }
        for partition in &self.free {
            if named.contains(partition.name.as_str()) {
                let partition = partition.name.clone();
                steps.push(PoolOperation::Allocate { partition });
            }
        }
        for partition in &self.allocated {
            if !named.contains(partition.name.as_str()) {
                let partition = partition.name.clone();
                steps.push(PoolOperation::Free { partition });
            }
        }
        if self.boot != BootState::Current {
            // The last step: a crash before it begins anew.
            steps.push(PoolOperation::RecordBoot);
        }
        steps
    }

    /// Chooses the partitions of a job in a repaired state. A repeated request has those of the first one.
    ///
    /// # Errors
    ///
    /// [`PoolError`] if the directory has not what Slurm gave to the job.
    ///
    /// ```
    /// use ipu_core::IpuCount;
    /// use ipu_slurm::{BootState, PoolPartition, PoolRequest, PoolState};
    ///
    /// let size = IpuCount::try_from(2_u32).ok();
    /// let mut state = PoolState {
    ///     boot: BootState::Current,
    ///     free: vec![PoolPartition { name: "pt2_0".to_owned(), size }],
    ///     allocated: Vec::new(),
    ///     pointers: Default::default(),
    /// };
    /// let request = PoolRequest { size, count: 1 };
    /// let allocation = state.allocate(7, &request)?;
    /// assert_eq!(allocation.partitions, ["pt2_0"]);
    /// allocation.steps.iter().for_each(|step| state.apply(step));
    /// assert_eq!(
    ///     state.allocate(8, &request).unwrap_err().to_string(),
    ///     "the job needs 1 partition of size 2, and the node has 0 free; \
    ///      ask the administrator to run ipu-slurm pool check",
    /// );
    /// # Ok::<(), ipu_slurm::PoolError>(())
    /// ```
    pub fn allocate(&self, job_id: u32, request: &PoolRequest) -> Result<PoolAllocation, PoolError> {
        let fits = |partition: &&PoolPartition| request.size.is_none() || partition.size == request.size;
        let count = usize::try_from(request.count).unwrap_or(usize::MAX);
        if let Some(partitions) = self.pointers.get(&job_id) {
            let has = |name: &String| self.allocated.iter().filter(fits).any(|p| p.name == *name);
            let is_sole = |name: &String| self.users_of(name).count() == 1;
            if partitions.len() == count && partitions.iter().all(|name| has(name) && is_sole(name)) {
                return Ok(PoolAllocation {
                    steps: Vec::new(),
                    partitions: partitions.clone(),
                });
            }
            return Err(PoolError::OtherPartitions {
                job_id,
                request: *request,
            });
        }
        let mut names: Vec<String> = self.free.iter().filter(fits).map(|p| p.name.clone()).collect();
        if names.len() < count {
            let free = names.len();
            return Err(PoolError::TooFew {
                request: *request,
                free,
            });
        }
        names.sort();
        names.truncate(count);
        let pointer = PoolOperation::WritePointer {
            job_id,
            partitions: names.clone(),
        };
        let moves = names.iter().map(|name| PoolOperation::Allocate {
            partition: name.clone(),
        });
        Ok(PoolAllocation {
            steps: std::iter::once(pointer).chain(moves).collect(),
            partitions: names,
        })
    }

    /// Returns the steps that free the partitions of a job in a repaired state; none for a job without them.
    #[must_use]
    pub fn release(&self, job_id: u32) -> Vec<PoolOperation> {
        let Some(partitions) = self.pointers.get(&job_id) else {
            return Vec::new();
        };
        let mut steps = vec![PoolOperation::RemovePointer { job_id }];
        let is_allocated = |name: &String| self.allocated.iter().any(|partition| partition.name == *name);
        for name in partitions.iter().collect::<BTreeSet<_>>() {
            // A partition that two pointers name stays with the other job.
            if is_allocated(name) && self.users_of(name).all(|user| user == job_id) {
                let partition = name.clone();
                steps.push(PoolOperation::Free { partition });
            }
        }
        steps
    }

    /// Returns the jobs whose pointers name a partition.
    pub fn users_of<'a>(&'a self, partition: &'a str) -> impl Iterator<Item = u32> + 'a {
        let names = move |names: &Vec<String>| names.iter().any(|name| name == partition);
        self.pointers
            .iter()
            .filter(move |(_, partitions)| names(partitions))
            .map(|(job_id, _)| *job_id)
    }

    /// Applies a step, as a file system does.
    pub fn apply(&mut self, step: &PoolOperation) {
        match step {
            PoolOperation::WritePointer { job_id, partitions } => {
                self.pointers.insert(*job_id, partitions.clone());
            }
            PoolOperation::RemovePointer { job_id } => drop(self.pointers.remove(job_id)),
            PoolOperation::Allocate { partition } => {
                move_file(&mut self.free, &mut self.allocated, partition)
            }
            PoolOperation::Free { partition } => move_file(&mut self.allocated, &mut self.free, partition),
            PoolOperation::RecordBoot => self.boot = BootState::Current,
        }
    }
}

/// Moves a file. One of the same name is replaced.
fn move_file(from: &mut Vec<PoolPartition>, to: &mut Vec<PoolPartition>, name: &str) {
    if let Some(index) = from.iter().position(|partition| partition.name == name) {
        let partition = from.remove(index);
        to.retain(|other| other.name != name);
        to.push(partition);
        to.sort_by(|left, right| left.name.cmp(&right.name));
    }
}
