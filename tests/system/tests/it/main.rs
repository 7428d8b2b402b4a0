//! The product as people have it: installed with `kubectl apply -k deploy/kubernetes`, with the rights that are written there
//! and none besides, on a real node without a way out. What people type is done by `kubectl`, as the guide tells it
//! (`docs/kubernetes.md`), and the jobs are those of `examples/kubernetes`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod disruptions;
mod installation;
mod interactive;
mod observability;
mod training;
