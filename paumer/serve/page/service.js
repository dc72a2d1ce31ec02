/**
 * The service seen from the page: what it answers, and what went wrong in words.
 *
 * Every address is relative, so that the page also works behind a path prefix.
 *
 * @typedef {{name: string, colour: [number, number, number]}} ClassOf
 * @typedef {{name: string | null, mode: string, miou: number | null, data?: string | null,
 *   images?: number | null, speed_up: number | null, where?: string | null,
 *   latency_ms: number | null, work: number}} Point Its work is in MACs, of those without pausing.
 * @typedef {{name: string, classes: ClassOf[], points: Point[], curve: Point[], blocks: number,
 *   latency_ms: number | null, patch: [number, number], side: number | null}} Model
 * @typedef {{mode: string, point: string | null,
 *   width: number, height: number, patch: [number, number],
 *   milliseconds: Record<"decode" | "queue" | "compute" | "encode" | "total", number>,
 *   work: number, shares: Record<string, number>, blocks: Record<string, number>, merged: number,
 *   images: Record<"labels" | "paused" | "merged" | "entropy", string>}} Answer
 * @typedef {{t: number, requests: number, refused: number, point: string | null, queue: number,
 *   p99: number | null}} Second One second; the requests refused are among the requests.
 * @typedef {{queue: number, running: number, point: string | null, mode: string,
 *   requests_per_second: number, latency_ms_p50: number | null, latency_ms_p99: number | null,
 *   accepted: number, refused: number, changes: number, history: Second[]}} Status
 */

const MEANINGS = new Map([
  [413, "This image is too large for the service."],
  [415, "The service cannot read this image."],
  [429, "The service is at its limit and takes no more just now."],
  [502, "The proxy in front of the service found no server."],
  [503, "The service is not ready: it is starting or stopping."],
  [504, "The service did not answer the proxy in time."],
]);

/** A request that did not succeed; the message is for people. */
export class Refusal extends Error {
  /**
   * @param {string} message
   * @param {number} status - of HTTP; 0 where no server answered
   * @param {number | null} wait - the seconds after which to try again, where the service says so
   */
  constructor(message, status, wait = null) {
    super(message);
    this.status = status;
    this.wait = wait;
  }

  /** Whether the same request may succeed later. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 502;
  }
}

/**
 * The response of the service; throws a {@link Refusal} unless it succeeded.
 * @param {string} address
 * @param {RequestInit} [options]
 * @returns {Promise<Response>}
 */
async function request(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (options?.signal?.aborted) throw error;
    throw new Refusal("The server does not answer. Is paumer serve still running?", 0);
  }
  if (response.ok) return response;
  const said = await reason(response);
  const meaning = MEANINGS.get(response.status) ?? "";
  const wait = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  throw new Refusal(
    [meaning, said].filter(Boolean).join(" ") || `The service answered ${response.status}.`,
    response.status,
    Number.isFinite(wait) ? wait : null,
  );
}

/**
 * What the service itself says about a refusal, as a sentence; nothing if it is not JSON.
 * @param {Response} response
 */
async function reason(response) {
  try {
    const { error } = await response.json();
    if (typeof error !== "string" || !error) return "";
    return error[0].toUpperCase() + error.slice(1) + (/[.?!]$/.test(error) ? "" : ".");
  } catch {
    return "";
  }
}

/** @returns {Promise<Model>} */
export const model = async () => (await request("v1/model")).json();

/** @returns {Promise<{name: string, url: string, thumbnail: string}[]>} */
export const scenes = async () => (await request("v1/scenes")).json();

/**
 * @param {AbortSignal} signal
 * @returns {Promise<Status>}
 */
export const status = async (signal) =>
  (await request("v1/status", { signal, cache: "no-store" })).json();

/**
 * The bytes of a built-in scene.
 * @param {string} url
 */
export const scene = async (url) => (await request(url)).blob();

/**
 * @param {Blob} bytes
 * @param {Record<string, string>} options
 * @param {AbortSignal} [signal]
 */
function post(bytes, options, signal) {
  const headers = { "Content-Type": bytes.type || "application/octet-stream" };
  return request(`v1/segment?${new URLSearchParams(options)}`, { method: "POST", body: bytes, headers, signal });
}

/**
 * The segmentation of a picture and pictures of it.
 * @param {Blob} bytes
 * @param {string} mode - a mode, or auto
 * @param {AbortSignal} signal
 * @param {Record<string, string>} [more] - options
 * @returns {Promise<Answer>}
 */
export const segment = async (bytes, mode, signal, more = {}) =>
  (await post(bytes, { mode, output: "all", ...more }, signal)).json();

/**
 * The mask or the overlay as a PNG file.
 * @param {Blob} bytes
 * @param {string} mode - a mode, or auto
 * @param {"mask" | "overlay"} output
 */
export const png = async (bytes, mode, output) => (await post(bytes, { mode, output })).blob();

/**
 * The mask of a frame that is to be shown in time, and the mode that the service chose.
 * @param {Blob} bytes
 * @param {string} mode - a mode, or auto
 * @param {number} milliseconds
 * @param {AbortSignal} signal
 */
export async function frame(bytes, mode, milliseconds, signal) {
  const options = { mode, output: "mask", deadline_ms: String(Math.round(milliseconds)) };
  const response = await post(bytes, options, signal);
  const point = decodeURIComponent(response.headers.get("X-Paumer-Point") ?? "");
  return { mask: await response.blob(), mode: response.headers.get("X-Paumer-Mode") ?? mode, point };
}
