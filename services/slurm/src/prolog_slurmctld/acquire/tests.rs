//! The choice of a start.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipu_proxy_client::ClientOptions;
use ipu_slurm::parse_job;
use serde_json::{Value, json};

use super::*;
use crate::fake_slurm::fake_slurm;
use crate::scripted_proxy::{Response, ScriptedProxy};

fn start(uid: &str) -> RunStart {
    RunStart::from_uid(uid).unwrap()
}

fn file(uid: &str, state: FileState, used: Option<u32>) -> RunFile {
    let start = start(uid);
    RunFile {
        partition: partition_id(uid),
        start,
        state,
        used,
        left: Vec::new(),
        hook: "1-1".to_owned(),
        ipus: Some(4),
        gcds: 1,
        variables: BTreeMap::new(),
    }
}

fn partition_id(uid: &str) -> PartitionId {
    start(uid).owner("testbed").unwrap().job.partition_id(0)
}

/// Returns the start that a hook of the run `7.100` chooses after the loss of the ledger, which left the
/// partitions of these starts without owner.
fn chosen_without_owners(earlier: &[RunFile], quarantined: &[&str]) -> (String, FileState) {
    let partitions: Vec<PartitionDocument> = quarantined
        .iter()
        .map(|uid| {
            let document = serde_json::json!({
                "id": partition_id(uid), "state": "quarantined", "instance": 0, "attempt": 0, "size": 4, "gcds": 1,
                "replicas": 1, "reconfigurable": false, "ipus": [], "since": 0, "priority": 0,
                "preemptible": false, "errors": [], "env": {},
            });
            serde_json::from_value(document).unwrap()
        })
        .collect();
    with_choice(earlier, |choice| {
        let (start, state) = choice.choose_from(&partitions);
        (start.to_string(), state)
    })
}

/// Calls `read` with the choice of run 7.100 after these files.
fn with_choice<T>(earlier: &[RunFile], read: impl FnOnce(&StartChoice<'_>) -> T) -> T {
    let key = start("7.100").key;
    let owner = OwnerDocument::from(&start("7.100").owner("testbed").unwrap());
    read(&StartChoice {
        cluster: "testbed",
        key: &key,
        request: &PutPartition::new(owner, 4),
        earlier,
    })
}

#[test]
fn a_start_that_may_have_been_used_is_not_repeated_after_the_loss_of_the_ledger() {
    let next = |number: u32| (format!("7.100.{number}"), FileState::Pending);
    let undecided = |used| [file("7.100", FileState::Undecided, used)];
    // A hook was killed between the file of the first start and its own choice.
    assert_eq!(chosen_without_owners(&undecided(Some(0)), &["7.100"]), next(1));
    assert_eq!(chosen_without_owners(&undecided(Some(2)), &[]), next(3));
    // A file of an earlier version of this program.
    assert_eq!(chosen_without_owners(&undecided(None), &["7.100"]), next(1));
    let pending = [file("7.100.1", FileState::Pending, None)];
    assert_eq!(chosen_without_owners(&pending, &["7.100", "7.100.1"]), next(1));
    let other = [file("7.99", FileState::Undecided, Some(4))];
    let first = ("7.100".to_owned(), FileState::Pending);
    assert_eq!(chosen_without_owners(&other, &[]), first);
}

#[test]
fn the_starts_of_earlier_runs_are_kept() {
    let earlier = [
        file("7.99.1", FileState::Active, Some(0)),
        RunFile {
            left: vec![start("7.98"), start("7.99")],
            ..file("7.100", FileState::Undecided, None)
        },
    ];
    let left = with_choice(&earlier, |choice| choice.left());
    assert_eq!(left, ["7.98", "7.99", "7.99.1"].map(start));
}

/// Returns the document of an active partition.
fn active(id: &PartitionId, attempt: u32) -> Value {
    json!({
        "id": id, "state": "active", "instance": 0, "attempt": attempt, "size": 4, "gcds": 1, "replicas": 1,
        "reconfigurable": false, "ipus": [], "since": 0, "priority": 0, "preemptible": false, "errors": [],
        "env": {}, "controller": {"name": "vipu:8090"},
    })
}

#[tokio::test]
async fn a_hook_that_gives_up_forces_no_controller_and_hits_no_later_attempt() {
    for (setting, forces) in [("0", false), ("1", true)] {
        for (requested, attempt) in [(Some(1), 1), (None, 2)] {
            let id = partition_id("7.100");
            let (document, gone) = (active(&id, 2), json!({"id": id, "state": "gone"}));
            let server = ScriptedProxy::start(move |request| {
                Response::ok(if request.starts_with("GET") {
                    &document
                } else {
                    &gone
                })
            });
            let model = format!("ApiHost=vipu\nApiPort=8090\nIpuofDir=/d\nForceDeletePartition={setting}\n");
            let conf = ConfFiles::parse(("vipu.conf", ""), &[("pod64", &model)]).unwrap();
            withdraw(&server.client(), &conf, "testbed", &start("7.100"), requested).await;
            let sent = server.requests().pop().unwrap();
            assert!(
                sent.starts_with("DELETE ") && sent.contains("uid=7%2E100"),
                "{sent}"
            );
            assert_eq!(!sent.contains("force=false"), forces, "{sent}");
            assert!(sent.contains(&format!("attempt={attempt}")), "{sent}");
        }
    }
}

/// A record of Slurm 22.05.
const CONFIGURING: &str = include_str!("../../../../../ipu-slurm/tests/data/scontrol-22.05/configuring.txt");
/// Maximum time for one request of a test.
const REQUEST_DEADLINE: Duration = Duration::from_millis(200);
const WAIT: Duration = Duration::from_secs(1);
/// The client repeats a request that a proxy answers with nonsense.
const MAX_REQUESTS: u32 = 4;

/// Returns the response of a proxy to every request.
type ScriptedResponse = fn() -> Response;

/// Waits for a proxy, and returns the error, the time and the AdminComment of the job.
async fn wait_for(proxy: &ScriptedProxy, has_start: bool) -> (AcquireError, Duration, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let scontrol = r#"printf '%s\n' "$*" >>"$(dirname "$0")/comments""#;
    let slurm = fake_slurm(path, &[("scontrol", scontrol)]);
    let id = CONFIGURING.strip_prefix("JobId=").unwrap().split(' ').next();
    let job = parse_job(CONFIGURING, id.unwrap().parse().unwrap()).unwrap();
    let mut comment = AdminCommentWriter::new(&slurm, &job);
    let mut options = ClientOptions::default();
    options.deadline = REQUEST_DEADLINE;
    options.retry.random = Arc::new(|| 0);
    let client = ProxyClient::new(proxy.url(), options).unwrap();
    let key = start("7.100").key;
    let owner = OwnerDocument::from(&start("7.100").owner("testbed").unwrap());
    let request = PutPartition::new(owner, 4);
    let asked = Instant::now();
    let deadline = asked + WAIT;
    let result = if has_start {
        let own = file("7.100", FileState::Pending, None);
        std::fs::write(path.join("testbed-7.env"), own.render()).unwrap();
        let job_file = JobFile {
            directory: path,
            name: "testbed-7.env".to_owned(),
        };
        let mut acquisition = Acquisition {
            proxy: client,
            partition: partition_id("7.100"),
            request,
            model: "pod64",
            deadline,
            job_file: &job_file,
            hook: own.hook.clone(),
            attempt: Cell::new(None),
        };
        acquisition.run_on_machines(&mut comment).await.map(drop)
    } else {
        let choice = StartChoice {
            cluster: "testbed",
            key: &key,
            request: &request,
            earlier: &[],
        };
        choice.choose(&client, deadline, &mut comment).await.map(drop)
    };
    let elapsed = asked.elapsed();
    let comments = std::fs::read_to_string(path.join("comments")).unwrap_or_default();
    let Err(error) = result else {
        panic!("there is no partition");
    };
    (error, elapsed, comments)
}

#[tokio::test]
async fn a_hook_names_a_proxy_that_cannot_serve_it_and_ends_within_its_wait_and_one_request() {
    let answers: [(&str, ScriptedResponse); 4] = [
        ("no response", || Response::Hang),
        ("", || Response::Nonsense),
        ("because", || Response::problem(401, "Unauthenticated")),
        ("because", || Response::problem(409, "Conflict")),
    ];
    for (text, answer) in answers {
        let proxy = ScriptedProxy::start(move |_| answer());
        let (first, later) = tokio::join!(wait_for(&proxy, false), wait_for(&proxy, true));
        for (error, elapsed, comments) in [first, later] {
            let AcquireError::TimedOut(sentence) = error else {
                panic!("{text}: the wait is over too early");
            };
            for said in [&sentence, &comments] {
                assert!(
                    said.contains(proxy.url()) && said.contains(text),
                    "{text}: {said}"
                );
            }
            assert!(comments.contains("AdminComment=vipu: "), "{comments}");
            // A loaded machine needs more.
            let most = WAIT + MAX_REQUESTS * REQUEST_DEADLINE + Duration::from_secs(5);
            assert!(WAIT <= elapsed && elapsed < most, "{text}: {elapsed:?}");
        }
    }
}
