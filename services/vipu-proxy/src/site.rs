//! Protection against requests of web pages in a local browser: cross-site requests, DNS rebinding and form
//! writes.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::uri::Authority;
use http::{HeaderMap, Request, StatusCode, header};

use crate::problem::Problem;

/// Refuses requests on loopback for a host name that another party resolves.
pub(crate) fn check_host<B>(request: &Request<B>, loopback: bool) -> Result<(), Problem> {
    let host = authority(request);
    if loopback && host.as_ref().is_some_and(|host| !is_local(host.host())) {
        return Err(Problem::new(
            StatusCode::MISDIRECTED_REQUEST,
            "ForeignHost",
            "the header Host must be an IP address or localhost: the proxy listens on a loopback address",
        )
        .with_fix("send the request to http://localhost, or to the IP address"));
    }
    Ok(())
}

/// Refuses cross-site requests.
pub(crate) fn check_origin<B>(request: &Request<B>) -> Result<(), Problem> {
    let headers = request.headers();
    let is_foreign = match header_text(headers, "sec-fetch-site") {
        // The browser has compared the origins, and no page can set this header. An intermediary may have
        // replaced the host.
        Some("same-origin") => false,
        Some("none") | None => {
            // An unreadable Origin counts as another origin.
            let origin = header_text(headers, header::ORIGIN.as_str());
            headers.contains_key(header::ORIGIN) && !is_same_origin(origin, authority(request).as_ref())
        }
        Some(_) => true,
    };
    if is_foreign {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "CrossSite",
            "a page of another site sent the request: its Origin is not the Host, or Sec-Fetch-Site is not same-origin",
        )
        .with_fix("send the request with a client other than a browser, such as ipuctl or curl"));
    }
    Ok(())
}

/// Refuses a write that a page can send without a CORS preflight: one that is not `application/json`. A
/// request without a body and without `Origin` does not come from a page.
pub(crate) fn check_write(headers: &HeaderMap, empty: bool) -> Result<(), Problem> {
    let content_type = header_text(headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
    let content_type = content_type.split(';').next().unwrap_or_default().trim();
    if content_type.eq_ignore_ascii_case("application/json")
        || (empty && !headers.contains_key(header::ORIGIN))
    {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "NotJsonType",
        format!("Content-Type = {content_type:?}: a write must be application/json"),
    )
    .with_fix("send the header `Content-Type: application/json`"))
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the target host of the request: of its URI (HTTP/2), or of its header.
fn authority<B>(request: &Request<B>) -> Option<Authority> {
    let uri_host = request.uri().authority().cloned();
    uri_host.or_else(|| {
        let host = request.headers().get(header::HOST)?;
        // An unreadable host matches none of the allowed hosts.
        Some(
            Authority::try_from(host.as_bytes())
                .unwrap_or_else(|_| Authority::from_static("unreadable.invalid")),
        )
    })
}

fn is_local(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok()
        || bare.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
}

/// Returns whether an origin is the host itself. The default port of the scheme is optional.
fn is_same_origin(origin: Option<&str>, host: Option<&Authority>) -> bool {
    let (Some((scheme, origin)), Some(host)) = (origin.and_then(|text| text.split_once("://")), host) else {
        return false;
    };
    let implied = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let Ok(origin) = origin.parse::<Authority>() else {
        return false;
    };
    origin.host().eq_ignore_ascii_case(host.host())
        && origin.port_u16().unwrap_or(implied) == host.port_u16().unwrap_or(implied)
}
