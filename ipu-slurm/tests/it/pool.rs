//! Static partitions: whatever two jobs do, and wherever a process is killed, no partition is in two jobs and
//! none is lost.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::IpuCount;
use ipu_slurm::{
    BootState, PoolError, PoolFile, PoolOperation, PoolPartition, PoolRequest, PoolState, job_of_pointer,
    parse_pointer, pointer_name, pointer_text,
};
use proptest::prelude::*;

fn size(ipus: u32) -> Option<IpuCount> {
    Some(IpuCount::try_from(ipus).expect("it is a power of two"))
}

fn partition(name: &str, ipus: u32) -> PoolPartition {
    PoolPartition {
        name: name.into(),
        size: size(ipus),
    }
}

/// Returns a pool with two partitions of one IPU and two of two IPUs.
fn pool() -> PoolState {
    PoolState {
        boot: BootState::Current,
        free: vec![
            partition("a1", 1),
            partition("b2", 2),
            partition("c1", 1),
            partition("d2", 2),
        ],
        allocated: Vec::new(),
        pointers: BTreeMap::new(),
    }
}

fn one(ipus: u32) -> PoolRequest {
    PoolRequest {
        size: size(ipus),
        count: 1,
    }
}

fn apply_all(state: &mut PoolState, steps: &[PoolOperation]) {
    for step in steps {
        state.apply(step);
    }
}

#[test]
fn a_job_gets_the_size_that_it_asked_for() {
    let mut state = pool();
    let allocation = state.allocate(7, &one(2)).unwrap();
    assert_eq!(allocation.partitions, ["b2"]);
    apply_all(&mut state, &allocation.steps);
    assert_eq!(state.allocate(7, &one(2)).unwrap().steps, []);
    let steps = state.release(7);
    apply_all(&mut state, &steps);
    assert_eq!(state, pool());
}

#[test]
fn too_few_partitions_are_an_error_with_the_numbers() {
    let request = PoolRequest {
        size: size(2),
        count: 3,
    };
    let error = pool().allocate(7, &request).unwrap_err();
    assert_eq!(error, PoolError::TooFew { request, free: 2 });
    assert_eq!(
        error.to_string(),
        "the job needs 3 partitions of size 2, and the node has 2 free; ask the administrator to run \
         ipu-slurm pool check"
    );
}

#[test]
fn a_pointer_of_another_size_is_not_handed_on() {
    let mut state = pool();
    let allocation = state.allocate(7, &one(2)).unwrap();
    apply_all(&mut state, &allocation.steps);
    let request = one(1);
    let error = PoolError::OtherPartitions { job_id: 7, request };
    assert_eq!(state.allocate(7, &request), Err(error));
}

#[test]
fn a_partition_that_two_pointers_name_stays_with_the_other_job() {
    let mut state = pool();
    for job_id in [7, 8] {
        let partitions = vec!["a1".to_owned()];
        state.apply(&PoolOperation::WritePointer { job_id, partitions });
    }
    let steps = state.repair();
    apply_all(&mut state, &steps);
    assert!(state.allocate(7, &one(1)).is_err());
    assert_eq!(state.release(7), [PoolOperation::RemovePointer { job_id: 7 }]);
}

#[test]
fn a_first_use_keeps_what_the_scripts_of_the_guide_allocated() {
    let mut state = pool();
    let allocation = state.allocate(7, &one(1)).unwrap();
    apply_all(&mut state, &allocation.steps);
    state.boot = BootState::Unknown;
    assert_eq!(state.repair(), [PoolOperation::RecordBoot]);
}

#[test]
fn a_file_of_a_partition_parses_to_itself_and_one_of_the_guide_has_no_size() {
    let file = PoolFile {
        size: size(2),
        variables: BTreeMap::from([("IPUOF_VIPU_API_HOST".to_owned(), "pod".to_owned())]),
    };
    assert_eq!(PoolFile::parse(&file.render()), file);
    assert_eq!(PoolFile::parse(""), PoolFile::default());
    assert_eq!(PoolFile::parse("PATH=/tmp\n"), PoolFile::default());
}

#[test]
fn a_pointer_is_the_bare_name_on_its_only_line() {
    assert_eq!(pointer_text(&["pt2_0".into()]), "pt2_0\n");
    assert_eq!(parse_pointer("pt2_0\n"), ["pt2_0"]);
    assert_eq!(parse_pointer("../../etc/shadow\n.hidden\n\n"), [""; 0]);
    assert_eq!(job_of_pointer(&pointer_name(7)), Some(7));
    assert_eq!(job_of_pointer("p07"), None);
}

/// An event on a node.
#[derive(Clone, Debug)]
enum Event {
    /// Prolog of a job, or Epilog, killed after some steps.
    Prolog(u32, PoolRequest, usize),
    Epilog(u32, usize),
    /// A Prolog of Graphcore's corrected script, killed after some steps.
    SeedProlog(u32, usize),
    Reboot,
}

fn event() -> impl Strategy<Value = Event> {
    let job = 1..4_u32;
    let kill = prop_oneof![3 => Just(usize::MAX), 1 => 0..8_usize];
    let request = (prop_oneof![Just(size(1)), Just(size(2)), Just(None)], 1..3_u32);
    let request = request.prop_map(|(size, count)| PoolRequest { size, count });
    prop_oneof![
        6 => (job.clone(), request, kill.clone()).prop_map(|(job, request, kill)| {
            Event::Prolog(job, request, kill)
        }),
        5 => (job.clone(), kill.clone()).prop_map(|(job, kill)| Event::Epilog(job, kill)),
        2 => (job, kill).prop_map(|(job, kill)| Event::SeedProlog(job, kill)),
        1 => Just(Event::Reboot),
    ]
}

/// A node whose processes are killed between any two steps.
struct Node {
    state: PoolState,
    /// The partitions of the jobs that run: their Prolog has ended well, and their Epilog has not begun.
    running: BTreeMap<u32, Vec<String>>,
}

impl Node {
    /// Takes steps until the process is killed; returns whether it was not.
    fn take(&mut self, steps: &[PoolOperation], left: &mut usize) -> bool {
        for step in steps {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            self.state.apply(step);
            self.check();
        }
        true
    }

    fn take_event(&mut self, event: &Event) {
        match event {
            Event::Prolog(job, request, kill) => {
                let mut left = *kill;
                if !self.take(&self.state.repair(), &mut left) {
                    return;
                }
                let Ok(allocation) = self.state.allocate(*job, request) else {
                    return;
                };
                if self.take(&allocation.steps, &mut left) {
                    self.running.insert(*job, allocation.partitions);
                }
            }
            Event::Epilog(job, kill) => {
                self.running.remove(job);
                let mut left = *kill;
                if self.take(&self.state.repair(), &mut left) {
                    let steps = self.state.release(*job);
                    self.take(&steps, &mut left);
                }
            }
            Event::SeedProlog(job, kill) => {
                if self.state.boot == BootState::Earlier {
                    let steps = self.state.repair();
                    apply_all(&mut self.state, &steps);
                }
                let free = self.state.free.first().map(|partition| partition.name.clone());
                let (Some(partition), false) = (free, self.state.pointers.contains_key(job)) else {
                    return;
                };
                let partitions = vec![partition.clone()];
                let allocate = PoolOperation::Allocate { partition };
                let pointer = PoolOperation::WritePointer {
                    job_id: *job,
                    partitions: partitions.clone(),
                };
                // After a boot, the script frees everything first. Otherwise it does not repair: it may take
                // what a pointer already names.
                let is_named = self.state.users_of(&partitions[0]).count() > 0;
                if !is_named && self.take(&[allocate, pointer], &mut kill.clone()) {
                    self.running.insert(*job, partitions);
                }
            }
            Event::Reboot => {
                self.running.clear();
                self.state.boot = BootState::Earlier;
            }
        }
    }

    fn check(&self) {
        let names = |list: &[PoolPartition]| list.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
        let mut all = names(&self.state.free);
        all.extend(names(&self.state.allocated));
        all.sort();
        assert_eq!(all, ["a1", "b2", "c1", "d2"], "a partition is lost or doubled");
        let mut used = BTreeSet::new();
        for (job, partitions) in &self.running {
            assert_eq!(self.state.pointers.get(job), Some(partitions));
            for partition in partitions {
                assert!(used.insert(partition), "{partition} is in two jobs");
                assert!(names(&self.state.allocated).contains(partition));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_partition_is_in_two_jobs_and_none_is_lost(events in prop::collection::vec(event(), 0..30)) {
        let mut node = Node { state: pool(), running: BTreeMap::new() };
        for event in &events {
            node.take_event(event);
            node.check();
        }
        // Every job ends: everything is free.
        for job in 1..4 {
            node.take_event(&Event::Epilog(job, usize::MAX));
        }
        prop_assert_eq!(node.state, pool());
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC*|(# ipu-slurm pool 1 size=[0-9]{0,3}\n(IPUOF_[A-Z]=.*\n)*)") {
        let file = PoolFile::parse(&text);
        prop_assert_eq!(PoolFile::parse(&file.render()), file);
        let names = parse_pointer(&text);
        prop_assert_eq!(parse_pointer(&pointer_text(&names)), names);
    }
}
