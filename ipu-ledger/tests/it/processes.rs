//! Several real processes on one SQLite ledger and one controller.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{ControllerName, JobKey, Topology};
use ipu_ledger::{EntryState, Ledger, LedgerOptions, Owner, PartitionSpec, Request, SqliteStore};
use ipu_vipu_client::{ConnectOptions, ControllerEndpoint, ControllerPool, GrpcController, VipuController};
use vipu_sim::Simulator;

/// Number of competing processes, and number of partitions that each requests and releases.
const PROCESSES: u32 = 5;
const REQUESTS_PER_PROCESS: u32 = 4;

/// Environment of a child process: the controller's address, the ledger and the number of the process.
const ADDRESS: &str = "IPU_LEDGER_TEST_ADDRESS";
const STORE: &str = "IPU_LEDGER_TEST_STORE";
const NUMBER: &str = "IPU_LEDGER_TEST_NUMBER";

fn controller(address: &str) -> Arc<GrpcController> {
    let endpoint: ControllerEndpoint = address.parse().unwrap();
    Arc::new(GrpcController::connect(&endpoint, &ConnectOptions::default()).unwrap())
}

fn ledger(address: &str, path: PathBuf) -> Ledger<GrpcController, SqliteStore> {
    let pool = ControllerPool::single(ControllerName::new("pod").unwrap(), controller(address));
    let mut options = LedgerOptions::default();
    options.queue_poll_interval = Duration::from_millis(20);
    options.listing_age = Duration::from_millis(20);
    Ledger::new(pool, SqliteStore::open(path).unwrap(), options)
}

/// A child process of the test below; without its environment it does nothing.
#[tokio::test]
async fn child_process_requests_and_releases() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let path = PathBuf::from(std::env::var_os(STORE).unwrap());
    let number: u32 = std::env::var(NUMBER).unwrap().parse().unwrap();
    let ledger = ledger(&address, path);
    for round in 0..REQUESTS_PER_PROCESS {
        let owner = Owner {
            kind: "Test".into(),
            job: JobKey::new("ns", format!("p{number}-{round}"), "1").unwrap(),
        };
        let size = [16, 8, 4][((number + round) % 3) as usize];
        let request =
            Request::of_instance(owner.clone(), 0, PartitionSpec::of_size(size.try_into().unwrap()));
        let id = request.id.clone();
        ledger.ensure_active(request, &mut |_| {}).await.unwrap();
        let entry = ledger.get(&id).await.unwrap().unwrap();
        assert_eq!(
            (&entry.state, entry.owner),
            (&EntryState::Active, Some(owner.clone()))
        );
        let held = ledger.list().await.unwrap();
        let held = held
            .iter()
            .filter(|entry| matches!(entry.state, EntryState::Active));
        assert!(held.map(|entry| entry.spec.size.get()).sum::<u32>() <= 16);
        ledger.release(&id, &owner, None).await.unwrap();
        assert_eq!(ledger.get(&id).await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_share_a_ledger_all_get_partitions_and_leave_none() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("ledger.db");
    let pod = Simulator::builder(Topology::pod16()).start().await.unwrap();
    let address = pod.addr().to_string();
    let children: Vec<_> = (0..PROCESSES)
        .map(|number| {
            Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "processes::child_process_requests_and_releases",
                    "--nocapture",
                ])
                .env(ADDRESS, &address)
                .env(STORE, &store)
                .env(NUMBER, number.to_string())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let waits = children
        .into_iter()
        .map(|child| tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()));
    for child in waits.collect::<Vec<_>>() {
        let output = child.await.unwrap();
        let output_text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{output_text}");
        assert!(output_text.contains("1 passed"), "{output_text}");
    }
    assert_eq!(ledger(&address, store).list().await.unwrap(), []);
    assert_eq!(controller(&address).list_partitions(None).await.unwrap(), []);
}
