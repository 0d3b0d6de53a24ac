//! What a browser without scripts sees: the state in one page.

use serde_json::Value;

/// The page for a status and the peers, as the API gives them.
pub fn page(status: &Value, peers: &Value) -> String {
    let name = text(&status["name"]);
    let state = if status["ready"] == true { "ready".to_owned() } else { text(&status["reason"]) };
    let mut rows = String::new();
    for peer in peers["peers"].as_array().into_iter().flatten() {
        let instances = peer["instances"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut shown: Vec<String> = instances
            .iter()
            .take(20)
            .map(|i| {
                let class = if i["up"] == true { "up" } else { "down" };
                format!("<span class={class}>{} {}</span>", text(&i["instance"]), text(&i["standing"]))
            })
            .collect();
        if instances.len() > shown.len() {
            shown.push(format!("and {} more", instances.len() - shown.len()));
        }
        let limit = peer["max_calls"].as_u64().map(|n| format!(" of {n}")).unwrap_or_default();
        rows.push_str(&format!(
            "<tr><td>{}<td>{}{limit}<td>{}</tr>",
            text(&peer["name"]),
            text(&peer["calls"]),
            shown.join("<br>")
        ));
    }
    let listeners: Vec<String> = status["listeners"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|l| {
            format!("<code>{} {}</code> ({})", text(&l["transport"]), text(&l["bind"]), text(&l["realm"]))
        })
        .collect();
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=5>\
         <meta name=viewport content=\"width=device-width\"><title>{name} - sbe</title><link rel=stylesheet href=/ui/style.css><body class=plain>\
         <h1>{name}</h1><p>sbe {}, {state}, up {} s. Calls: {}. Requests: {}. Failovers: {}.</p>\
         <p>Listeners: {}</p><table><tr><th>Peer<th>Calls<th>Instances</tr>{rows}</table>\
         <p><a href=/metrics>metrics</a> <a href=/api/v1/status>status</a> <a href=/api/v1/peers>peers</a> \
         <a href=/api/v1/calls>calls</a> <a href=/api/v1/dns>DNS</a></p></html>",
        text(&status["version"]),
        status["uptime"].as_f64().unwrap_or_default().floor(),
        text(&status["calls"]),
        text(&status["requests"]),
        text(&status["failovers"]),
        listeners.join(", "),
    )
}

/// A value as text that is no markup.
fn text(value: &Value) -> String {
    let plain = match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    plain
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_text_and_never_markup() {
        let status = json!({ "name": "<script>alert(1)</script>", "ready": true, "listeners": [] });
        let peers =
            json!({ "peers": [{ "name": "a&\"b\"<i>", "calls": 3, "max_calls": 9, "instances": [] }] });
        let page = page(&status, &peers);
        assert!(!page.contains("<script>") && !page.contains("<i>"), "{page}");
        assert!(page.contains("a&amp;&quot;b&quot;&lt;i&gt;<td>3 of 9"), "{page}");
    }
}
