//! The liveness of processes keeps the contract.

use std::process::{Child, Command};
use std::sync::Arc;

use async_trait::async_trait;
use ipu_allocator::Liveness;
use ipu_allocator::process::{ProcessHolder, ProcessLiveness};
use ipu_core::allocator::Request;
use ipu_core::hardware::PartitionSpec;
use ipu_core::{IpuCount, JobKey, Owner};
use ipu_testkit::{LivenessBench, liveness_suite};
use tokio::sync::Mutex;

/// Processes, of which none is reaped before the end.
#[derive(Default)]
struct Processes(Mutex<Vec<Child>>);

#[async_trait]
impl LivenessBench for Processes {
    fn liveness(&self) -> Arc<dyn Liveness> {
        Arc::new(ProcessLiveness)
    }

    async fn start_owner(&self, name: &str) -> Request {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let holder = ProcessHolder::of(child.id()).unwrap();
        self.0.lock().await.push(child);
        let key = JobKey::new("example", name, holder.pid().to_string()).unwrap();
        let spec = PartitionSpec::of_size(IpuCount::try_from(1).unwrap());
        Request::of_instance(Owner::new("Example", key), 0, spec).with_holder(holder.to_string())
    }

    async fn end_owner(&self, request: &Request) {
        let holder: ProcessHolder = request.holder.parse().unwrap();
        for child in self.0.lock().await.iter_mut() {
            if child.id() == holder.pid() {
                child.kill().unwrap();
            }
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in self.0.get_mut() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[tokio::test]
async fn the_liveness_of_processes_keeps_the_contract() {
    println!("{}", liveness_suite(async || Processes::default()).await);
}
