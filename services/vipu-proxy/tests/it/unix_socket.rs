//! A proxy on a Unix socket: access by the kernel's credentials, and processes as holders of partitions.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use ipu_core::PartitionId;
use ipu_proxy_client::{
    ClientError, ClientOptions, HoldState, OnNoCapacity, OwnerDocument, ProxyClient, PutPartition,
};
use tempfile::TempDir;
use vipu_proxy::{ListenAddress, Proxy, Settings, StartError};

use crate::local::{OTHER_USER, can_change_user};

struct UnixProxy {
    directory: TempDir,
    proxy: Proxy,
    client: ProxyClient,
}

fn settings(listen: ListenAddress) -> Settings {
    let mut settings = Settings::simulated("pod16");
    settings.listen = Some(listen);
    settings
}

async fn start_at(socket: &Path) -> Result<Proxy, StartError> {
    Proxy::start(settings(ListenAddress::Unix(socket.to_owned())).check().unwrap()).await
}

fn client_of(address: &str) -> ProxyClient {
    ProxyClient::new(address, ClientOptions::default()).unwrap()
}

async fn start() -> UnixProxy {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(&directory);
    let proxy = start_at(&socket).await.unwrap();
    let client = client_of(&proxy.listen_address().to_string());
    UnixProxy {
        directory,
        proxy,
        client,
    }
}

fn socket_in(directory: &TempDir) -> PathBuf {
    directory.path().join("run/socket")
}

fn id(text: &str) -> PartitionId {
    PartitionId::new(text).unwrap()
}

fn request(name: &str, process: Option<u32>) -> PutPartition {
    let mut request = PutPartition::new(OwnerDocument::new("HostRun", "me", name, "1"), 4);
    request.process_id = process;
    request
}

fn sleep() -> Child {
    Command::new("sleep").arg("600").spawn().unwrap()
}

#[track_caller]
fn assert_invalid(result: Result<impl std::fmt::Debug, ClientError>, rule: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), Some("InvalidValue"), "{error}");
    let problem = error.problem().unwrap();
    assert_eq!(problem.field.as_deref(), Some("processId"), "{error}");
    assert!(problem.rule.as_deref().unwrap().contains(rule), "{error}");
    assert!(problem.fix.is_some(), "{error}");
}

#[tokio::test]
async fn the_socket_is_private_and_its_user_needs_no_token() {
    let running = start().await;
    let socket = socket_in(&running.directory);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(socket.parent().unwrap()), 0o700);
    let wait = OnNoCapacity::Queue(Duration::from_secs(30));
    let (id, request) = (id("p"), request("job", None));
    let active = running.client.put(&id, &request, wait).await.unwrap();
    assert_eq!(active.state, HoldState::Active);
    running.proxy.shutdown().await;
}

#[tokio::test]
async fn another_user_cannot_write_even_with_access_to_the_socket() {
    if !can_change_user("another_user_cannot_write_even_with_access_to_the_socket") {
        return;
    }
    let running = start().await;
    let socket = socket_in(&running.directory);
    for path in [&socket, socket.parent().unwrap(), running.directory.path()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut curl = tokio::process::Command::new("curl");
    curl.arg("--unix-socket").arg(&socket);
    curl.args(["-s", "-X", "POST", "-H", "content-type: application/json"]);
    curl.arg("http://localhost/v1/repair");
    curl.as_std_mut().uid(OTHER_USER).gid(OTHER_USER);
    let done = curl.output().await.unwrap();
    let refused = String::from_utf8_lossy(&done.stdout);
    assert!(refused.contains("Unauthenticated"), "{refused}");
    running.proxy.shutdown().await;
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_and_other_files_are_not() {
    let running = start().await;
    let socket = socket_in(&running.directory);
    let refused = start_at(&socket).await.unwrap_err();
    let StartError::Listen { source, .. } = refused else {
        panic!("{refused}")
    };
    assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);
    running.client.ready().await.unwrap();
    running.proxy.shutdown().await;
    assert!(socket.exists(), "the test needs a stale socket");
    let next = start_at(&socket).await.unwrap();
    client_of(&next.listen_address().to_string())
        .ready()
        .await
        .unwrap();
    next.shutdown().await;
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "a file").unwrap();
    assert!(start_at(&socket).await.is_err());
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "a file");
}

#[test]
fn a_user_who_locks_the_directory_of_the_socket_does_not_stop_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let socket = socket_in(&directory);
    // systemd makes directories below /run that every user can read, and so lock.
    std::fs::create_dir(socket.parent().unwrap()).unwrap();
    let other = std::fs::File::open(socket.parent().unwrap()).unwrap();
    other.lock().unwrap();
    let (sender, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let proxy = start_at(&socket).await.unwrap();
            sender.send(()).unwrap();
            proxy.shutdown().await;
        });
    });
    started.recv_timeout(Duration::from_secs(60)).unwrap();
}

#[tokio::test]
async fn the_partition_of_an_ended_process_is_released() {
    let running = start().await;
    let mut holder = sleep();
    let request = request("job", Some(holder.id()));
    let wait = OnNoCapacity::Queue(Duration::from_secs(30));
    let active = running.client.put(&id("p"), &request, wait).await.unwrap();
    assert_eq!(active.state, HoldState::Active);
    assert_eq!(active.process_id, Some(holder.id()));
    running.client.repair().await.unwrap();
    assert_eq!(running.client.partitions().await.unwrap().len(), 1);
    holder.kill().unwrap();
    // A zombie holds nothing.
    while !running.client.partitions().await.unwrap().is_empty() {
        running.client.repair().await.unwrap();
    }
    holder.wait().unwrap();
    running.proxy.shutdown().await;
}

#[tokio::test]
async fn a_partition_whose_process_is_not_observed_any_more_outlives_it() {
    let running = start().await;
    let mut holder = sleep();
    let wait = OnNoCapacity::Queue(Duration::from_secs(30));
    let put = async |request| running.client.put(&id("p"), &request, wait).await.unwrap();
    put(request("job", Some(holder.id()))).await;
    // A repeated request without the field changes nothing.
    assert_eq!(put(request("job", None)).await.process_id, Some(holder.id()));
    assert_eq!(put(request("job", Some(0))).await.process_id, None);
    // Nor does a process that repeats the request of a partition that outlives it.
    assert_eq!(put(request("job", Some(holder.id()))).await.process_id, None);
    holder.kill().unwrap();
    holder.wait().unwrap();
    running.client.repair().await.unwrap();
    let kept = running.client.partition(&id("p")).await.unwrap();
    assert_eq!(kept.state, HoldState::Active);
    running.proxy.shutdown().await;
}

#[tokio::test]
async fn a_process_is_refused_over_tcp_and_if_it_does_not_run_or_has_a_lease() {
    let running = start().await;
    let put = async |client: &ProxyClient, request: &PutPartition| {
        client
            .put(&id("p"), request, OnNoCapacity::Queue(Duration::ZERO))
            .await
    };
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let result = put(&running.client, &request("job", Some(ended.id()))).await;
    assert_invalid(result, "must be a running process");
    let mut leased = request("job", Some(std::process::id()));
    leased.lease_seconds = Some(60);
    assert_invalid(put(&running.client, &leased).await, "exclude each other");
    running.proxy.shutdown().await;
    let listen: ListenAddress = "127.0.0.1:0".parse().unwrap();
    let tcp = Proxy::start(settings(listen).check().unwrap()).await.unwrap();
    let client = client_of(&tcp.listen_address().to_string());
    let result = put(&client, &request("job", Some(std::process::id()))).await;
    assert_invalid(result, "Unix socket");
    tcp.shutdown().await;
}

#[test]
fn settings_that_need_tcp_are_refused_on_a_unix_socket() {
    let unix = || settings("unix:/run/proxy".parse().unwrap());
    let mut with_port = unix();
    with_port.port = Some(80);
    let error = with_port.check().unwrap_err().to_string();
    assert!(error.contains("a Unix socket has no port"), "{error}");
    let mut with_tls = unix();
    (with_tls.tls_cert, with_tls.tls_key) = (Some("c".into()), Some("k".into()));
    let error = with_tls.check().unwrap_err().to_string();
    assert!(error.contains("a Unix socket has no TLS"), "{error}");
    assert!("unix:".parse::<ListenAddress>().is_err());
}

#[tokio::test]
async fn a_proxy_is_idle_without_connections_partitions_and_requests() {
    let running = start().await;
    let short = Duration::from_millis(1);
    let wait = OnNoCapacity::Queue(Duration::from_secs(30));
    let (id, request) = (id("p"), request("job", None));
    running.client.put(&id, &request, wait).await.unwrap();
    let UnixProxy { client, proxy, .. } = running;
    let idle = async |timeout| {
        tokio::time::timeout(timeout, proxy.until_idle(short))
            .await
            .is_ok()
    };
    let brief = Duration::from_millis(50);
    assert!(!idle(brief).await, "the client is connected");
    drop(client);
    assert!(!idle(brief).await, "a partition is held");
    let client = client_of(&proxy.listen_address().to_string());
    client.delete(&id, &Default::default()).await.unwrap();
    drop(client);
    assert!(idle(Duration::from_secs(60)).await);
    proxy.shutdown().await;
}
