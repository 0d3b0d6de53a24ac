//! The dashboard: pages, style and script within the binary, without anything from elsewhere.

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Only what this interface itself serves may be loaded, run and asked; no text becomes markup or script.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; \
require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Path, media type and content.
pub(super) const FILES: [(&str, &str, &str); 11] = [
    ("/", HTML, include_str!("dashboard/index.html")),
    ("/ui/style.css", STYLE, include_str!("dashboard/style.css")),
    ("/ui/icon.svg", IMAGE, include_str!("dashboard/icon.svg")),
    ("/ui/app.js", SCRIPT, include_str!("dashboard/app.js")),
    ("/ui/dom.js", SCRIPT, include_str!("dashboard/dom.js")),
    ("/ui/live.js", SCRIPT, include_str!("dashboard/live.js")),
    ("/ui/overview.js", SCRIPT, include_str!("dashboard/overview.js")),
    ("/ui/calls.js", SCRIPT, include_str!("dashboard/calls.js")),
    ("/ui/ladder.js", SCRIPT, include_str!("dashboard/ladder.js")),
    ("/ui/route.js", SCRIPT, include_str!("dashboard/route.js")),
    ("/ui/system.js", SCRIPT, include_str!("dashboard/system.js")),
];

/// A route for each file.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, &(path, kind, text)| {
        router.route(
            path,
            get(async move || -> Response { ([(header::CONTENT_TYPE, kind)], text).into_response() }),
        )
    })
}
