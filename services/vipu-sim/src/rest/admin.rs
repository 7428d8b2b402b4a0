//! The administrator's routes under `/sim/`, which no real controller has.

use bytes::Bytes;
use http::StatusCode;
use ipu_core::hardware::Allocation;
use serde::Deserialize;
use serde_json::json;
use warp::Filter;
use warp::filters::BoxedFilter;
use warp::reply::{Reply as _, Response};

use super::{parse_body, refuse, respond, with};
use crate::api::Api;
use crate::error::SimError;
use crate::faults::{Fault, Faults};
use crate::state::{Health, NewAgent, Settings, SimState};

/// Builds all routes under `/sim/`.
pub(crate) fn routes(api: &Api, faults: &Faults) -> BoxedFilter<(Response,)> {
    any_of!(state_routes(api), hardware_routes(api), fault_routes(faults))
}

/// Builds the routes for state, map and settings.
fn state_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let state = warp::path!("sim" / "state")
        .and(warp::get())
        .and(with(api))
        .then(|api: Api| async move { respond(StatusCode::OK, api.read(|state| Ok(state.pod())).await) });
    let map = warp::path!("sim" / "map")
        .and(warp::get())
        .and(with(api))
        .then(|api: Api| async move {
            match api.read(|state| Ok(crate::ascii_map::draw(state))).await {
                Ok(text) => text.into_response(),
                Err(refusal) => refuse(&refusal),
            }
        });
    let settings = warp::path!("sim" / "settings")
        .and(warp::get())
        .and(with(api))
        .then(|api: Api| async move { respond(StatusCode::OK, api.read(|state| Ok(state.settings)).await) });
    let set = warp::path!("sim" / "settings")
        .and(warp::put())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|body: Bytes, api: Api| async move {
            let set = async {
                let settings: Settings = parse_body(&body)?;
                let change = move |state: &mut SimState, now| {
                    state.set_settings(settings, now);
                    Ok(settings)
                };
                api.change("set delays", change).await
            };
            respond(StatusCode::OK, set.await)
        });
    any_of!(state, map, settings, set)
}

/// Builds the routes for agents, allocations and IPU health.
fn hardware_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let agents = warp::path!("sim" / "agents")
        .and(warp::get())
        .and(with(api))
        .then(
            |api: Api| async move { respond(StatusCode::OK, api.read(|state| state.attributes(&[])).await) },
        );
    let add_agent = warp::path!("sim" / "agents")
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|body: Bytes, api: Api| async move {
            let added = async {
                let new: NewAgent = parse_body(&body)?;
                let add = |state: &mut SimState, now| state.add_agent(new, now);
                api.change("add agent", add).await.map(|()| json!({}))
            };
            respond(StatusCode::CREATED, added.await)
        });
    let remove_agent = warp::path!("sim" / "agents" / String)
        .and(warp::delete())
        .and(with(api))
        .then(|id: String, api: Api| async move {
            let result = api
                .change("remove agent", move |state, now| state.remove_agent(&id, now))
                .await;
            respond(StatusCode::OK, result.map(|()| json!({})))
        });
    let health = warp::path!("sim" / "ipus" / String / u32)
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|agent: String, ipu: u32, body: Bytes, api: Api| async move {
            let set = async {
                let HealthBody { health } = parse_body(&body)?;
                let change = move |state: &mut SimState, now| state.set_health(&agent, ipu, health, now);
                api.change("set health", change).await.map(|()| json!({}))
            };
            respond(StatusCode::OK, set.await)
        });
    any_of!(agents, add_agent, remove_agent, health, allocation_routes(api))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthBody {
    health: Health,
}

fn allocation_routes(api: &Api) -> BoxedFilter<(Response,)> {
    let list = warp::path!("sim" / "allocations")
        .and(warp::get())
        .and(with(api))
        .then(|api: Api| async move {
            let allocations = api
                .read(|state| Ok(state.hardware.topology.allocations().to_vec()))
                .await;
            respond(StatusCode::OK, allocations)
        });
    let add = warp::path!("sim" / "allocations")
        .and(warp::post())
        .and(warp::body::bytes())
        .and(with(api))
        .then(|body: Bytes, api: Api| async move {
            let added = async {
                let new: Allocation = parse_body(&body)?;
                let add = |state: &mut SimState, now| state.add_allocation(new, now);
                api.change("add allocation", add).await.map(|()| json!({}))
            };
            respond(StatusCode::CREATED, added.await)
        });
    let remove = warp::path!("sim" / "allocations" / String)
        .and(warp::delete())
        .and(with(api))
        .then(|id: String, api: Api| async move {
            let result = api
                .change("remove allocation", move |state, now| {
                    state.remove_allocation(&id, now)
                })
                .await;
            respond(StatusCode::OK, result.map(|()| json!({})))
        });
    any_of!(list, add, remove)
}

fn fault_routes(faults: &Faults) -> BoxedFilter<(Response,)> {
    let list = warp::path!("sim" / "faults")
        .and(warp::get())
        .and(with(faults))
        .map(|faults: Faults| respond(StatusCode::OK, Ok(faults.list())));
    let set = warp::path!("sim" / "faults")
        .and(warp::put())
        .and(warp::body::bytes())
        .and(with(faults))
        .map(|body: Bytes, faults: Faults| {
            let parsed = parse_body::<Vec<Fault>>(&body).and_then(validate_faults);
            respond(
                StatusCode::OK,
                parsed.map(|new| {
                    tracing::info!(?new, "faults set");
                    faults.set(new);
                    faults.list()
                }),
            )
        });
    let clear = warp::path!("sim" / "faults")
        .and(warp::delete())
        .and(with(faults))
        .map(|faults: Faults| {
            tracing::info!("faults cleared");
            faults.clear();
            respond(StatusCode::OK, Ok(faults.list()))
        });
    any_of!(list, set, clear)
}

/// Rejects an error rate outside 0 to 1.
fn validate_faults(faults: Vec<Fault>) -> Result<Vec<Fault>, SimError> {
    use crate::faults::FaultKind;
    for fault in &faults {
        if let FaultKind::Error { rate, .. } = fault.kind
            && !(0.0..=1.0).contains(&rate)
        {
            return Err(SimError::invalid("rate", rate, "must be from 0 to 1"));
        }
    }
    Ok(faults)
}
