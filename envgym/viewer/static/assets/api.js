// Asks the server; an answer that is no data is an Error with the server's sentence.
export async function get(path, query = {}, signal = undefined) {
  return ask(`/api/${path}${queryText(query)}`, { signal });
}

// A request that has an effect carries the page's token, which only a page of this server can read.
export async function post(path, data, signal = undefined) {
  const { page_token: token } = await get("page", {}, signal);
  const headers = { "Content-Type": "application/json", "X-Envgym-Page": token };
  return ask(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(data), signal });
}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server must answer, got nothing (envgym view); start it again and reload the page.");
  }
  const data = await response.json().catch(() => ({ detail: `The server must answer with JSON, got status ${response.status}; reload the page.` }));
  if (!response.ok) throw new Error(data.detail);
  return data;
}

export function queryText(query) {
  const parts = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(parts.map(([key, value]) => [key, String(value)])).toString();
  return text && `?${text}`;
}
