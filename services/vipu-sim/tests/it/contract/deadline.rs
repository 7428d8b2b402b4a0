//! A call is not sent after its deadline, even if its process was suspended in between.

use std::future::{Future, poll_fn};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ipu_core::BootTime;
use ipu_core::hardware::Topology;
use ipu_vipu_client::{
    ConnectOptions, ControllerEndpoint, TlsOptions, VipuController, VipuError, boot_time, send_before,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::oneshot;

use super::security::{Authority, options, secure};
use super::{Fixture, Transport, id, over_both_transports, request};

over_both_transports![
    a_call_in_the_queue_of_its_connection_is_not_sent_late,
    a_call_of_a_suspended_process_that_connects_is_not_sent_late,
    a_call_whose_connection_takes_too_long_is_not_sent_late,
    a_call_whose_deadline_has_passed_is_not_sent,
    a_call_that_its_caller_abandons_is_not_sent,
    a_sent_call_waits_for_its_reply_after_the_deadline,
];

/// Long enough for a handshake to begin on a busy machine.
const DEADLINE: Duration = Duration::from_secs(1);

/// Holds back the bytes of its first connection.
struct Relay {
    endpoint: ControllerEndpoint,
    /// Resolves when bytes of the client are there.
    client_has_sent: oneshot::Receiver<()>,
    release: oneshot::Sender<()>,
}

impl Relay {
    async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind((IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
            .await
            .unwrap();
        let endpoint = listener.local_addr().unwrap().try_into().unwrap();
        let (has_sent, client_has_sent) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            client.peek(&mut [0]).await.unwrap();
            has_sent.send(()).unwrap();
            released.await.unwrap();
            loop {
                tokio::spawn(async move {
                    let mut controller = TcpStream::connect(to).await.unwrap();
                    // A client that gives up breaks its connection.
                    copy_bidirectional(&mut client, &mut controller).await.ok();
                });
                client = listener.accept().await.unwrap().0;
            }
        });
        Self {
            endpoint,
            client_has_sent,
            release,
        }
    }
}

/// Starts a controller with TLS and partition p1.
async fn secure_with_partition(transport: Transport) -> (Fixture, TlsOptions, TempDir) {
    let authority = Authority::new();
    let (fixture, files) = secure(transport, &authority, &["127.0.0.1"]).await;
    let tls = authority.client();
    let direct = fixture.reconnect(&options(tls.clone()));
    direct.create_partition(request("p1", 4)).await.unwrap();
    (fixture, tls, files)
}

/// Polls `call` once, suspends this thread with all clients and connections until after `deadline`, and
/// returns the result of `call`.
async fn suspended_after_first_poll<T>(deadline: BootTime, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
    match first {
        Poll::Ready(result) => result,
        Poll::Pending => {
            suspend_until_after(deadline);
            call.await
        }
    }
}

fn suspend_until_after(deadline: BootTime) {
    while boot_time() <= deadline {
        std::thread::sleep(deadline.since(boot_time()) + Duration::from_millis(1));
    }
}

async fn assert_kept(controller: &dyn VipuController) {
    // A later call over the same connection: a removal before it would have been seen.
    assert_eq!(controller.list_partitions(None).await.unwrap().len(), 1);
}

async fn a_call_in_the_queue_of_its_connection_is_not_sent_late(transport: Transport) {
    let fixture = Fixture::without_delay(transport, Topology::pod4()).await;
    let controller = &fixture.controller;
    controller.create_partition(request("p1", 4)).await.unwrap();
    let p1 = id("p1");
    for _ in 0..3 {
        let deadline = boot_time().plus(Duration::from_millis(50));
        let reset = send_before(deadline, controller.reset_partition(&p1));
        let removal = send_before(deadline, controller.remove_partition(&p1, true));
        let results = suspended_after_first_poll(deadline, async { tokio::join!(reset, removal) }).await;
        assert_eq!(results, (Err(VipuError::NotSent), Err(VipuError::NotSent)));
        assert_kept(controller).await;
    }
}

async fn a_call_of_a_suspended_process_that_connects_is_not_sent_late(transport: Transport) {
    let (fixture, tls, _files) = secure_with_partition(transport).await;
    let relay = Relay::start(fixture.simulator.addr()).await;
    let controller = transport.connect(&relay.endpoint, &options(tls));
    let p1 = id("p1");
    let deadline = boot_time().plus(DEADLINE);
    let mut removal = pin!(send_before(deadline, controller.remove_partition(&p1, true)));
    tokio::select! {
        result = &mut removal => panic!("{result:?} before a connection"),
        sent = relay.client_has_sent => sent.unwrap(),
    }
    relay.release.send(()).unwrap();
    suspend_until_after(deadline);
    assert_eq!(removal.await, Err(VipuError::NotSent));
    assert_kept(&controller).await;
}

async fn a_call_whose_connection_takes_too_long_is_not_sent_late(transport: Transport) {
    let (fixture, tls, _files) = secure_with_partition(transport).await;
    let relay = Relay::start(fixture.simulator.addr()).await;
    let controller = transport.connect(&relay.endpoint, &options(tls));
    let deadline = boot_time().plus(DEADLINE);
    let error = send_before(deadline, controller.remove_partition(&id("p1"), true))
        .await
        .unwrap_err();
    assert_eq!(error, VipuError::NotSent);
    assert!(!error.may_have_executed());
    relay.release.send(()).unwrap();
    assert_kept(&controller).await;
}

async fn a_call_whose_deadline_has_passed_is_not_sent(transport: Transport) {
    let fixture = Fixture::without_delay(transport, Topology::pod4()).await;
    let deadline = boot_time();
    suspend_until_after(deadline);
    // An inner deadline does not extend the outer one.
    let later = deadline.plus(Duration::from_secs(60));
    for (outer, inner) in [(deadline, later), (later, deadline)] {
        let call = send_before(inner, fixture.controller.create_partition(request("p1", 4)));
        assert_eq!(send_before(outer, call).await, Err(VipuError::NotSent));
    }
    assert_eq!(fixture.controller.list_partitions(None).await, Ok(Vec::new()));
}

async fn a_call_that_its_caller_abandons_is_not_sent(transport: Transport) {
    let fixture = Fixture::without_delay(transport, Topology::pod4()).await;
    fixture.controller.version().await.unwrap();
    {
        let mut creation = pin!(fixture.controller.create_partition(request("p1", 4)));
        poll_fn(|context| Poll::Ready(creation.as_mut().poll(context).is_pending())).await;
    }
    assert_eq!(fixture.controller.list_partitions(None).await, Ok(Vec::new()));
}

async fn a_sent_call_waits_for_its_reply_after_the_deadline(transport: Transport) {
    let fixture = Fixture::without_delay(transport, Topology::pod4()).await;
    let relay = Relay::start(fixture.simulator.addr()).await;
    let controller = transport.connect(&relay.endpoint, &ConnectOptions::default());
    let deadline = boot_time().plus(DEADLINE);
    let mut creation = pin!(send_before(
        deadline,
        controller.create_partition(request("p1", 4))
    ));
    tokio::select! {
        result = &mut creation => panic!("{result:?} before the controller is reachable"),
        sent = relay.client_has_sent => sent.unwrap(),
    }
    suspend_until_after(deadline);
    tokio::select! {
        result = &mut creation => panic!("{result:?} before the controller is reachable"),
        () = tokio::task::yield_now() => {},
    }
    relay.release.send(()).unwrap();
    assert_eq!(creation.await, Ok(id("p1")));
}

/// The endpoint, CA, certificate and key of the client, in the environment of its process.
const CLIENT_VARS: [&str; 4] = ["TEST_ENDPOINT", "TEST_CA", "TEST_CERTIFICATE", "TEST_KEY"];

/// The process that is suspended: it removes p1.
async fn client_process(endpoint: String) {
    let [ca, certificate, key] = [1, 2, 3].map(|index| std::env::var(CLIENT_VARS[index]).unwrap());
    let tls = TlsOptions::new(ca).with_identity(certificate, key);
    let controller = Transport::Grpc.connect(&endpoint.parse().unwrap(), &options(tls));
    // Before the connection, so that the other process knows that it has passed.
    let deadline = boot_time().plus(DEADLINE);
    let calls = (0..16).map(|_| {
        let controller = Arc::clone(&controller);
        tokio::spawn(async move { send_before(deadline, controller.remove_partition(&id("p1"), true)).await })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), Err(VipuError::NotSent));
    }
    assert_kept(&controller).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_stopped_while_it_connects_removes_nothing() {
    if let Ok(endpoint) = std::env::var(CLIENT_VARS[0]) {
        return client_process(endpoint).await;
    }
    let (fixture, tls, _files) = secure_with_partition(Transport::Grpc).await;
    let relay = Relay::start(fixture.simulator.addr()).await;
    let identity = tls.identity.unwrap();
    let pem = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let values = [
        relay.endpoint.name().to_string(),
        pem(tls.ca_pem),
        pem(identity.cert_pem),
        pem(identity.key_pem),
    ];
    let name = std::thread::current().name().unwrap().to_owned();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .envs(CLIENT_VARS.into_iter().zip(values))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap();
    let connects = tokio::time::timeout(Duration::from_secs(60), relay.client_has_sent);
    connects.await.expect("the client connects").unwrap();
    let deadline = boot_time().plus(DEADLINE);

    kill_process(pid, Signal::STOP).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped(), "{status:?}");
    suspend_until_after(deadline);
    relay.release.send(()).unwrap();
    kill_process(pid, Signal::CONT).unwrap();

    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("1 passed"),
        "{output:?}"
    );
    assert_eq!(fixture.simulator.state().unwrap().partitions.len(), 1);
}
