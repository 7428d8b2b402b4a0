//! The typed client against a running proxy.

use std::path::Path;
use std::time::Duration;

use ipu_core::{CordonId, PartitionId, Timestamp};
use ipu_proxy_client::{
    ClientCertificate, ClientError, ClientOptions, CordonRequest, DeletePartition, DryRunRequest, Event,
    EventKind, Events, Heartbeat, HoldState, OnNoCapacity, OwnerDocument, ProxyClient, PutPartition,
    ResetPartition, TlsFiles, Token,
};
use vipu_proxy::{Proxy, Settings};

use crate::support::Authority;

/// Timeout of every operation.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a proxy over a simulated controller of 32 IPUs, with further settings.
async fn proxy(more: Settings) -> Proxy {
    let settings = more.or(Settings::simulated("1x8"));
    Proxy::start(settings.check().unwrap()).await.unwrap()
}

fn client(proxy: &Proxy, options: ClientOptions) -> ProxyClient {
    ProxyClient::new(&proxy.addr().to_string(), options).unwrap()
}

fn id(text: &str) -> PartitionId {
    PartitionId::new(text).unwrap()
}

fn put_request(name: &str, size: u32) -> PutPartition {
    PutPartition::new(
        OwnerDocument::new("Job", "default", name, format!("uid-{name}")),
        size,
    )
}

#[tokio::test]
async fn the_typed_client_creates_resets_and_deletes_partitions() {
    let proxy = proxy(Settings::default()).await;
    let client = client(&proxy, ClientOptions::default());
    let mut body = put_request("big", 32);
    body.lease_seconds = Some(600);
    // On another task, like a scheduler.
    let made = {
        let (client, body) = (client.clone(), body.clone());
        tokio::spawn(async move {
            client
                .ensure_active(&id("big"), &body, TIMEOUT, &mut |_| ())
                .await
        })
    };
    let made = made.await.unwrap().unwrap();
    assert_eq!(
        (made.state, made.size, made.reason),
        (HoldState::Active, 32, None)
    );
    assert!(made.env.contains_key("IPUOF_VIPU_API_PARTITION_ID"));
    assert_eq!(client.partition(&id("big")).await.unwrap().ipus.len(), 32);
    assert_eq!(client.stats().await.unwrap().total().unwrap().used, 32);
    assert_eq!(
        client
            .query(&ipu_proxy_client::CapacityQuery::new(2))
            .await
            .unwrap()
            .num_of_partitions,
        0
    );
    let lease = client.heartbeat(&id("big"), &Heartbeat::new(900)).await.unwrap();
    assert!(Some(lease.lease_until) > made.lease_until);

    let refused = client
        .put(&id("small"), &put_request("small", 4), OnNoCapacity::Reject)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some("DoesNotFit"), "{refused}");
    assert_eq!(refused.reason().unwrap().code, "NotEnoughFree");
    let other = client
        .put(&id("big"), &put_request("other", 32), OnNoCapacity::Reject)
        .await
        .unwrap_err();
    assert_eq!(other.problem().unwrap().owner.as_ref().unwrap().name, "big");
    let dry_run = {
        let mut dry_run = DryRunRequest::new(vec![4]);
        dry_run.if_these_ended = vec!["big".to_owned()];
        dry_run
    };
    assert!(client.plan(&dry_run).await.unwrap().results[0].fits);
    let planned = client.plan(&DryRunRequest::new(vec![4])).await.unwrap().results;
    assert_eq!(planned[0].reasons[0].reason.code, "NotEnoughFree");

    let queued = client
        .put(
            &id("small"),
            &put_request("small", 4),
            OnNoCapacity::Queue(Duration::ZERO),
        )
        .await
        .unwrap();
    assert_eq!(
        (queued.state, queued.waiting.unwrap().position),
        (HoldState::Waiting, 1)
    );
    assert_eq!(client.waiting().await.unwrap()[0].id, id("small"));
    let deletion = DeletePartition::default();
    client
        .wait_released(&id("big"), &deletion, TIMEOUT, &mut |_| ())
        .await
        .unwrap();
    let made = client
        .wait_active(&id("small"), TIMEOUT, &mut |_| ())
        .await
        .unwrap();
    assert_eq!(made.attempt, 0);
    let mut again = ResetPartition::default();
    again.attempt = Some(1);
    client.reset(&id("small"), &again).await.unwrap();
    let made = client
        .wait_active(&id("small"), TIMEOUT, &mut |_| ())
        .await
        .unwrap();
    assert_eq!(made.attempt, 1);

    let usage = client.usage(Timestamp::from_millis(0)).await.unwrap().records;
    assert_eq!(
        (usage.len(), usage[0].size, usage[0].end.as_str()),
        (1, 32, "released")
    );
    assert!(client.repair().await.unwrap().is_settled());
    assert!(client.controllers().await.unwrap().controllers[0].available);
    client.ready().await.unwrap();
    proxy.shutdown().await;
}

#[tokio::test]
async fn a_drain_ends_exactly_when_the_last_holder_has_released_its_partition() {
    let proxy = proxy(Settings::default()).await;
    let client = client(&proxy, ClientOptions::default());
    let controller = client.controllers().await.unwrap().controllers[0]
        .controller
        .name
        .to_string();
    client
        .ensure_active(&id("job"), &put_request("job", 4), TIMEOUT, &mut |_| ())
        .await
        .unwrap();
    let cordon = CordonRequest::new("everything", controller, "new firmware");
    let mut holders = Vec::new();
    let mut record = |held: &[ipu_proxy_client::BlockerDocument]| holders = held.to_vec();
    let timeout = client
        .drain(&cordon, Duration::ZERO, &mut record)
        .await
        .unwrap_err();
    assert!(matches!(timeout, ClientError::TimedOut { .. }), "{timeout}");
    assert_eq!(holders[0].id, id("job"));
    let refused = client
        .put(&id("new"), &put_request("new", 4), OnNoCapacity::Reject)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some("DoesNotFit"));
    let deletion = DeletePartition::default();
    let (name, mut ignore) = (id("job"), |_: &[ipu_proxy_client::BlockerDocument]| ());
    let (drained, deleted) = tokio::join!(
        client.drain(&cordon, TIMEOUT, &mut ignore),
        client.delete(&name, &deletion)
    );
    deleted.unwrap();
    drained.unwrap();
    let name = CordonId::new("everything").unwrap();
    assert!(client.uncordon(&name).await.unwrap().lifted.is_some());
    assert!(client.uncordon(&name).await.unwrap().lifted.is_none());
    assert!(client.cordons().await.unwrap().cordons.is_empty());
    proxy.shutdown().await;
}

/// Returns the next event about partitions.
async fn next_change(events: &mut Events) -> Event {
    loop {
        let event = events.next().await.unwrap();
        if !matches!(event.kind, EventKind::Subject(_)) {
            return event;
        }
    }
}

#[tokio::test]
async fn a_new_event_stream_resumes_after_the_last_event_of_the_old_one() {
    let proxy = proxy(Settings::default()).await;
    let client = client(&proxy, ClientOptions::default());
    let mut events = client.events(None);
    let first = events.next().await.unwrap();
    assert!(matches!(first.kind, EventKind::Snapshot(all) if all.partitions.is_empty()));
    client
        .ensure_active(&id("job"), &put_request("job", 4), TIMEOUT, &mut |_| ())
        .await
        .unwrap();
    let state = |event: &Event| match &event.kind {
        EventKind::Change(change) => change.to,
        other => panic!("{other:?}"),
    };
    let mut event = next_change(&mut events).await;
    assert_eq!(state(&event), HoldState::Creating);
    while state(&event) != HoldState::Active {
        event = next_change(&mut events).await;
    }
    drop(events);
    let deletion = DeletePartition::default();
    client
        .wait_released(&id("job"), &deletion, TIMEOUT, &mut |_| ())
        .await
        .unwrap();
    let mut events = client.events(event.id);
    assert_eq!(state(&next_change(&mut events).await), HoldState::Releasing);
    while state(&next_change(&mut events).await) != HoldState::Gone {}
    proxy.shutdown().await;
}

#[tokio::test]
async fn an_unknown_token_is_refused_until_the_client_sends_another() {
    let scratch = tempfile::tempdir().unwrap();
    let (tokens, own) = (scratch.path().join("tokens"), scratch.path().join("own"));
    std::fs::write(&tokens, "0123456789abcdef scheduler\n").unwrap();
    std::fs::write(&own, "guessed").unwrap();
    let mut settings = Settings::default();
    settings.token_file = Some(tokens);
    let proxy = proxy(settings).await;
    let mut options = ClientOptions::default();
    options.token = Some(Token::File(own.clone()));
    // The port is this process's own.
    options.connect_to = Some(proxy.addr());
    let client = client(&proxy, options);
    let refused = client.repair().await.unwrap_err();
    assert_eq!(refused.code(), Some("Unauthenticated"), "{refused}");
    std::fs::write(&own, "0123456789abcdef\n").unwrap();
    client.repair().await.unwrap();
    proxy.shutdown().await;
}

#[tokio::test]
async fn certificates_authenticate_both_sides_and_untrusted_issuers_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let issue = |authority: &Authority, folder: &str, name: &str| {
        let folder = scratch.path().join(folder);
        authority.write(&folder, name);
        folder
    };
    let (authority, other) = (Authority::new(), Authority::new());
    let server = issue(&authority, "server", "127.0.0.1");
    let scheduler = issue(&authority, "scheduler", "scheduler");
    let untrusted = issue(&other, "untrusted", "scheduler");
    let mut settings = Settings::default();
    settings.tls_cert = Some(server.join("tls.crt"));
    settings.tls_key = Some(server.join("tls.key"));
    settings.tls_client_ca = Some(server.join("ca.crt"));
    let proxy = proxy(settings).await;
    let url = format!("https://{}", proxy.addr());
    let with = |issuer: &Path, own: Option<&Path>| {
        let mut files = TlsFiles::new(issuer.join("ca.crt"));
        files.own = own.map(|own| ClientCertificate::new(own.join("tls.crt"), own.join("tls.key")));
        let mut options = ClientOptions::default();
        options.tls = Some(files);
        ProxyClient::new(&url, options).unwrap()
    };
    with(&server, Some(&scheduler)).repair().await.unwrap();
    let anonymous = with(&server, None);
    anonymous.stats().await.unwrap();
    assert_eq!(
        anonymous.repair().await.unwrap_err().code(),
        Some("Unauthenticated")
    );
    for rejected in [with(&untrusted, None), with(&server, Some(&untrusted))] {
        let error = rejected.stats().await.unwrap_err();
        assert!(matches!(error, ClientError::TlsRejected { .. }), "{error}");
    }
    let without_ca = ClientOptions::default();
    assert!(ProxyClient::new(&url, without_ca).is_err());
    proxy.shutdown().await;
}
