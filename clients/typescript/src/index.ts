/** A client of the service: every call of its OpenAPI document, with its types.
 *
 *     const client = serviceClient("https://CONTROL:8443", token);
 *     const { data, error } = await client.GET("/v1/jobs/{job}", { params: { path: { job } } });
 *
 * For files, fine-tuning and answers of models the `openai` package has more comfort; both may be used side by side.
 */
import createClient, { type Client, type ClientOptions } from "openapi-fetch";

import type { components, paths } from "./schema.js";

export type { components, paths };
export type Job = components["schemas"]["ServiceJob"];
export type Node = components["schemas"]["NodeAnswer"];
export type Recipe = components["schemas"]["RecipeAnswer"];
export type Server = components["schemas"]["ServerAnswer"];
export type ServiceClient = Client<paths>;

const LOOPBACK = ["127.0.0.1", "[::1]", "localhost"];

/** `options` are openapi-fetch's, such as a `fetch` that trusts the cluster's CA. Another host than this is asked by https
 * alone, for the token goes there. */
export function serviceClient(url: string, token: string, options: ClientOptions = {}): ServiceClient {
  const { protocol, hostname } = new URL(url);
  if (protocol !== "https:" && !(protocol === "http:" && LOOPBACK.includes(hostname))) {
    throw new Error(`${url}: the token would go over the network in the clear: use https`);
  }
  const headers = { Authorization: `Bearer ${token}`, ...options.headers };
  return createClient<paths>({ ...options, baseUrl: url.replace(/\/+$/, "").replace(/\/v1$/, ""), headers });
}

/** The answer's data; an error where the service's answer was no. */
export async function answered<T>(asked: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await asked;
  if (error === undefined && data !== undefined) return data;
  const said = (error as { error?: { code?: string; message?: string } } | undefined)?.error;
  throw new RequestFailed(response.status, said?.code ?? "no-answer", said?.message ?? `status ${response.status}`);
}

export class RequestFailed extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}
