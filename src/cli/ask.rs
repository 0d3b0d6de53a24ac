//! Commands that ask a running node by its admin interface.

use serde_json::Value;

use crate::admin::auth;
use crate::admin::client::{self, Answer, encoded};

use super::capture::Fault;
use super::{Admin, Calls, Explain, Flush, NO, UNREACHABLE, explain as text, print, show};

/// `sbe status`
pub fn status(admin: &Admin) -> u8 {
    ask(admin, "GET", "/api/v1/status", show::status)
}

/// `sbe peers`
pub fn peers(admin: &Admin) -> u8 {
    ask(admin, "GET", "/api/v1/peers", show::peers)
}

/// `sbe explain CALL-ID`
pub fn explain(args: &Explain) -> u8 {
    ask(&args.admin, "GET", &format!("/api/v1/calls/{}", encoded(&args.call_id)), text::explanation)
}

/// `sbe calls`
pub fn calls(args: &Calls) -> u8 {
    let given = [
        ("user", &args.user),
        ("peer", &args.peer),
        ("outcome", &args.outcome),
        ("method", &args.method),
        ("since", &args.since),
        ("until", &args.until),
        ("limit", &args.limit.map(|n| n.to_string())),
    ];
    let given = given.iter().filter_map(|(key, value)| Some(format!("{key}={}", encoded(value.as_ref()?))));
    let query = given.collect::<Vec<_>>().join("&");
    ask(&args.admin, "GET", &format!("/api/v1/calls?{query}"), text::calls)
}

/// `sbe drain`, `sbe undrain`
pub fn drain(admin: &Admin, drain: bool) -> u8 {
    let path = if drain { "/api/v1/drain" } else { "/api/v1/undrain" };
    ask(admin, "POST", path, show::drain)
}

/// `sbe flush [NAME]`
pub fn flush(args: &Flush) -> u8 {
    let path = match &args.name {
        Some(name) => format!("/api/v1/dns/{}", encoded(name)),
        None => "/api/v1/dns".to_owned(),
    };
    ask(&args.admin, "DELETE", &path, |_| "flushed\n".to_owned())
}

/// `sbe reload`
pub fn reload(admin: &Admin) -> u8 {
    ask(admin, "POST", "/api/v1/reload", show::reload)
}

/// `sbe upgrade`
pub fn upgrade(admin: &Admin) -> u8 {
    ask(admin, "POST", "/api/v1/upgrade", show::upgrade)
}

/// One question, and its answer printed.
pub(super) fn ask(admin: &Admin, method: &str, path: &str, show: impl Fn(&Value) -> String) -> u8 {
    match node(admin).and_then(|node| Ok(node.ask(method, path)?)) {
        Ok(answer) => tell(&answer, admin.json, show),
        Err(fault) => fault.tell(),
    }
}

/// The node that is meant, with the token to show it.
pub(super) fn node(admin: &Admin) -> Result<client::Admin, Fault> {
    let file = admin.token_file.clone().or_else(|| std::env::var_os("SBE_TOKEN_FILE").map(Into::into));
    let token = file.as_deref().map(auth::read).transpose().map_err(Fault::Token)?;
    Ok(client::Admin::new(&admin.admin)?.with_token(token))
}

/// Prints an answer. An error's JSON goes to the standard output too, if JSON was asked for.
pub(super) fn tell(answer: &Answer, json: bool, show: impl Fn(&Value) -> String) -> u8 {
    let Ok(value) = serde_json::from_slice::<Value>(&answer.body) else {
        eprintln!("the answer (status {}) is not JSON: is this sbe's admin interface?", answer.status);
        return UNREACHABLE;
    };
    let good = (200..300).contains(&answer.status);
    if json {
        print(&format!("{}\n", serde_json::to_string_pretty(&value).unwrap_or_default()));
    } else if good {
        print(&show(&value));
    } else {
        eprintln!("{}", show::plain(&value["error"]));
        if answer.status == 401 {
            eprintln!("the node wants a token: --token-file FILE, or SBE_TOKEN_FILE in the environment");
        }
        for error in value["errors"].as_array().into_iter().flatten() {
            eprintln!("{}", show::plain(error));
        }
    }
    if good { 0 } else { NO }
}
