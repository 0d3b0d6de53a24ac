//! Media types (RFC 7285 §8.4.2, §9.1, §11).

/// Information resource directory.
pub const DIRECTORY: &str = "application/alto-directory+json";
/// Network map.
pub const NETWORK_MAP: &str = "application/alto-networkmap+json";
/// Cost map.
pub const COST_MAP: &str = "application/alto-costmap+json";
/// Body of a query for a filtered cost map.
pub const COST_MAP_FILTER: &str = "application/alto-costmapfilter+json";
/// Endpoint costs.
pub const ENDPOINT_COST: &str = "application/alto-endpointcost+json";
/// Body of a query for endpoint costs.
pub const ENDPOINT_COST_PARAMS: &str = "application/alto-endpointcostparams+json";
/// Error.
pub const ERROR: &str = "application/alto-error+json";

/// A media type without its parameters, in lower case.
pub fn essence(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Plain JSON, as which some servers label all they have.
pub const PLAIN: &str = "application/json";

/// The Accept header for a resource: what is wanted, errors, and, unless it is one itself, a directory in its
/// place (RFC 7285 §8.3.4.2). `plain`: plain JSON will do.
pub fn accept(wanted: &str, plain: bool) -> String {
    let mut text = format!("{wanted},{ERROR}");
    if wanted != DIRECTORY {
        text = text + "," + DIRECTORY;
    }
    if plain { text + "," + PLAIN } else { text }
}
