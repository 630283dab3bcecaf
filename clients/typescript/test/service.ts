/** Against a running service: URL and TOKEN are in the environment. Ends with an error where something isn't as it should be. */
import { answered, type Job, RequestFailed, serviceClient } from "../src/index.js";

declare const process: { env: Record<string, string | undefined> };

function check(true_: boolean, what: string): void {
  if (!true_) throw new Error(what);
}

for (const url of ["http://control:8443", "HTTP://127.0.0.1.example:8443", "http://127.0.0.1@control:8443"]) {
  try {
    serviceClient(url, "token");
    check(false, `${url} would get the token in the clear`);
  } catch (error) {
    check(String(error).includes("in the clear: use https"), String(error));
  }
}
const client = serviceClient(`${process.env.URL}/v1`, process.env.TOKEN ?? "");
check((await answered(client.GET("/v1/me"))).id === "alice", "who I am");
const made: Job = await answered(
  client.POST("/v1/jobs", { body: { recipe: "mine", arguments: ["hostname"], gpus_per_node: 0 } }),
);
check(made.status === "queued", `a new job is ${made.status}`);
const listed = await answered(client.GET("/v1/jobs", { params: { query: { limit: 10 } } }));
check(listed.data.some((each) => each.id === made.id), "the job is listed");
const path = { job: made.id };
check((await answered(client.GET("/v1/jobs/{job}/log", { params: { path } }))).text === "", "no log yet");
check((await answered(client.GET("/v1/nodes"))).data[0]?.gpus === 8, "nodes have GPUs");
const [report] = (await answered(client.GET("/v1/verify/reports"))).data;
check(report?.failed.includes("gpu-count") === true && report.nodes[1]?.state === "failing", "the last verify report");
check((await answered(client.GET("/v1/recipes"))).data.some((each) => each.id === "finetune"), "recipes");
check((await answered(client.POST("/v1/jobs/{job}/cancel", { params: { path } }))).status === "cancelled", "cancelled");
try {
  await answered(client.GET("/v1/jobs/{job}", { params: { path: { job: "job-x" } } }));
  check(false, "a job that isn't there");
} catch (error) {
  check(error instanceof RequestFailed && error.code === "no-such-own-job", String(error));
}
console.log("as it should be");
