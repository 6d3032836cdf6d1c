// Keeps a round's page up with its round: what changes is fetched as the page itself, and put in place.
const part = () => document.getElementById("live");
let asked = false;

async function refresh() {
  if (asked) return;
  asked = true;
  await new Promise((done) => setTimeout(done, 400));
  asked = false;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const now = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
  if (now.dataset.state !== part().dataset.state) location.reload();
  else if (now.innerHTML !== part().innerHTML) part().innerHTML = now.innerHTML;
}

const events = new EventSource(part().dataset.events);
events.addEventListener("progress", refresh);
