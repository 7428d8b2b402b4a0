//! The typed client against a proxy that serves: what one says, the other understands.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipu_core::{CordonId, PartitionId, Timestamp};
use ipu_proxy_client::{
    ClientCertificate, ClientError, ClientOptions, CordonRequest, DeletePartition, DryRunRequest, Event,
    EventKind, Heartbeat, HoldState, OnNoCapacity, OwnerDocument, ProxyClient, PutPartition, ResetPartition,
    TlsFiles, Token,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use vipu_proxy::{Proxy, Settings};

/// Longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A proxy over a simulated controller of 32 IPUs, with further settings.
async fn proxy(more: Settings) -> Proxy {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut settings = Settings::default();
    settings.sim = Some("1x8".into());
    settings.sim_delay_ms = Some(0);
    settings.sim_listen = Some(anywhere);
    settings.listen = Some(anywhere);
    Proxy::start(more.or(settings).check().unwrap()).await.unwrap()
}

fn client(proxy: &Proxy, options: ClientOptions) -> ProxyClient {
    ProxyClient::new(&proxy.addr().to_string(), options).unwrap()
}

fn id(text: &str) -> PartitionId {
    PartitionId::new(text).unwrap()
}

fn wanted(name: &str, size: u32) -> PutPartition {
    PutPartition::new(
        OwnerDocument::new("Job", "default", name, format!("uid-{name}")),
        size,
    )
}

#[tokio::test]
async fn a_partition_lives_its_life_through_the_typed_client() {
    let proxy = proxy(Settings::default()).await;
    let client = client(&proxy, ClientOptions::default());
    let mut body = wanted("big", 32);
    body.lease_seconds = Some(600);
    // Off to another thread, as a scheduler would.
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
    assert_eq!(client.query(2).await.unwrap().num_of_partitions, 0);
    let lease = client.heartbeat(&id("big"), &Heartbeat::new(900)).await.unwrap();
    assert!(Some(lease.lease_until) > made.lease_until);

    let refused = client
        .put(&id("small"), &wanted("small", 4), OnNoCapacity::Refuse)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some("DoesNotFit"), "{refused}");
    assert_eq!(refused.reason().unwrap().code, "NotEnoughFree");
    let other = client
        .put(&id("big"), &wanted("other", 32), OnNoCapacity::Refuse)
        .await
        .unwrap_err();
    assert_eq!(other.problem().unwrap().owner.as_ref().unwrap().name, "big");
    let question = {
        let mut question = DryRunRequest::new(vec![4]);
        question.if_these_ended = vec!["big".to_owned()];
        question
    };
    assert!(client.plan(&question).await.unwrap().planned[0].fits);
    let planned = client.plan(&DryRunRequest::new(vec![4])).await.unwrap().planned;
    assert_eq!(planned[0].reasons[0].reason.code, "NotEnoughFree");

    let waits = client
        .put(
            &id("small"),
            &wanted("small", 4),
            OnNoCapacity::Join(Duration::ZERO),
        )
        .await
        .unwrap();
    assert_eq!(
        (waits.state, waits.waiting.unwrap().position),
        (HoldState::Waiting, 1)
    );
    assert_eq!(client.waiting().await.unwrap()[0].id, id("small"));
    let give = DeletePartition::default();
    client
        .wait_released(&id("big"), &give, TIMEOUT, &mut |_| ())
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
async fn a_drain_ends_when_the_last_holder_is_gone_and_not_before() {
    let proxy = proxy(Settings::default()).await;
    let client = client(&proxy, ClientOptions::default());
    let at = client.controllers().await.unwrap().controllers[0]
        .controller
        .name
        .to_string();
    client
        .ensure_active(&id("job"), &wanted("job", 4), TIMEOUT, &mut |_| ())
        .await
        .unwrap();
    let all = CordonRequest::new("everything", at, "new firmware");
    let mut holders = Vec::new();
    let mut tell = |held: &[ipu_proxy_client::BlockerDocument]| holders = held.to_vec();
    let late = client.drain(&all, Duration::ZERO, &mut tell).await.unwrap_err();
    assert!(matches!(late, ClientError::Late { .. }), "{late}");
    assert_eq!(holders[0].id, id("job"));
    let refused = client
        .put(&id("new"), &wanted("new", 4), OnNoCapacity::Refuse)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Some("DoesNotFit"));
    let give = DeletePartition::default();
    let (name, mut silent) = (id("job"), |_: &[ipu_proxy_client::BlockerDocument]| ());
    let (drained, gone) = tokio::join!(
        client.drain(&all, TIMEOUT, &mut silent),
        client.delete(&name, &give)
    );
    gone.unwrap();
    drained.unwrap();
    let name = CordonId::new("everything").unwrap();
    assert!(client.uncordon(&name).await.unwrap().lifted.is_some());
    assert!(client.uncordon(&name).await.unwrap().lifted.is_none());
    assert!(client.cordons().await.unwrap().cordons.is_empty());
    proxy.shutdown().await;
}

#[tokio::test]
async fn a_new_stream_of_events_goes_on_after_the_last_event_of_the_old_one() {
    let proxy = proxy(Settings::default()).await;
    let client = client(&proxy, ClientOptions::default());
    let mut events = client.events(None);
    let first = events.next().await.unwrap();
    assert!(matches!(first.told, EventKind::Snapshot(all) if all.partitions.is_empty()));
    client
        .ensure_active(&id("job"), &wanted("job", 4), TIMEOUT, &mut |_| ())
        .await
        .unwrap();
    let state = |event: &Event| match &event.told {
        EventKind::Change(change) => change.to,
        other => panic!("{other:?}"),
    };
    let mut event = events.next().await.unwrap();
    assert_eq!(state(&event), HoldState::Intent);
    while state(&event) != HoldState::Active {
        event = events.next().await.unwrap();
    }
    drop(events);
    let give = DeletePartition::default();
    client
        .wait_released(&id("job"), &give, TIMEOUT, &mut |_| ())
        .await
        .unwrap();
    let mut events = client.events(event.id);
    assert_eq!(state(&events.next().await.unwrap()), HoldState::Releasing);
    while state(&events.next().await.unwrap()) != HoldState::Gone {}
    proxy.shutdown().await;
}

#[tokio::test]
async fn a_token_that_is_not_known_is_refused_until_the_file_has_another() {
    let scratch = tempfile::tempdir().unwrap();
    let (tokens, own) = (scratch.path().join("tokens"), scratch.path().join("own"));
    std::fs::write(&tokens, "0123456789abcdef scheduler\n").unwrap();
    std::fs::write(&own, "guessed").unwrap();
    let mut settings = Settings::default();
    settings.token_file = Some(tokens);
    let proxy = proxy(settings).await;
    let mut options = ClientOptions::default();
    options.token = Some(Token::File(own.clone()));
    let client = client(&proxy, options);
    let refused = client.repair().await.unwrap_err();
    assert_eq!(refused.code(), Some("Unauthenticated"), "{refused}");
    std::fs::write(&own, "0123456789abcdef\n").unwrap();
    client.repair().await.unwrap();
    proxy.shutdown().await;
}

/// An authority, and what it signed.
struct Authority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A certificate for `host` and its key, in files.
    fn sign(&self, host: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = (
            self.file(&format!("{host}.crt")),
            self.file(&format!("{host}.key")),
        );
        std::fs::write(&files.0, certificate.pem()).unwrap();
        std::fs::write(&files.1, key.serialize_pem()).unwrap();
        files
    }
}

#[tokio::test]
async fn certificates_prove_both_sides_and_a_stranger_is_not_trusted() {
    let authority = Authority::new();
    let mut settings = Settings::default();
    let (certificate, key) = authority.sign("127.0.0.1");
    (settings.tls_cert, settings.tls_key) = (Some(certificate), Some(key));
    settings.tls_client_ca = Some(authority.file("ca"));
    let proxy = proxy(settings).await;
    let url = format!("https://{}", proxy.addr());
    let with = |ca: PathBuf, own: Option<(PathBuf, PathBuf)>| {
        let mut files = TlsFiles::new(ca);
        files.own = own.map(|(certificate, key)| ClientCertificate::new(certificate, key));
        let mut options = ClientOptions::default();
        options.tls = Some(files);
        ProxyClient::new(&url, options).unwrap()
    };
    let known = with(authority.file("ca"), Some(authority.sign("scheduler")));
    known.repair().await.unwrap();
    let nobody = with(authority.file("ca"), None);
    nobody.stats().await.unwrap();
    assert_eq!(nobody.repair().await.unwrap_err().code(), Some("Unauthenticated"));
    let stranger = Authority::new();
    let error = with(stranger.file("ca"), None).stats().await.unwrap_err();
    assert!(matches!(error, ClientError::TlsRejected { .. }), "{error}");
    let error = with(authority.file("ca"), Some(stranger.sign("scheduler")))
        .stats()
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::TlsRejected { .. }), "{error}");
    let missing = ClientOptions::default();
    assert!(ProxyClient::new(&url, missing).is_err());
    proxy.shutdown().await;
}

#[tokio::test]
async fn the_client_follows_the_pages_of_usage() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("ledger.db");
    let record = |number: u64| {
        let record = serde_json::json!({
            "id": "training", "ticket": number, "instance": 0, "size": 4, "attempts": 1, "heldSince": 1_000,
            "releasedAt": 2_000 + number / 7, "end": "released",
        });
        serde_json::from_value(record).unwrap()
    };
    let records: Vec<ipu_ledger::UsageRecord> = (0..4_500).map(record).collect();
    let log = ipu_ledger::SqliteStore::open(&path).unwrap();
    ipu_ledger::UsageLog::append(&log, &records).await.unwrap();
    drop(log);
    let mut settings = Settings::default();
    settings.store = Some(format!("file:{}", path.display()));
    let proxy = proxy(settings).await;
    let client = client(&proxy, ClientOptions::default());
    let since = Timestamp::from_millis(0);
    let page = client.usage_page(since, None).await.unwrap();
    assert_eq!((page.records.len(), page.continue_token.is_some()), (2_000, true));
    let all = client.usage(since).await.unwrap();
    assert_eq!((all.records.len(), all.continue_token), (4_500, None));
    assert_eq!(all.records[..2_000], page.records);
    proxy.shutdown().await;
}
