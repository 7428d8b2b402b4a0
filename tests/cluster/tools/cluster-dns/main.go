// The name server of a test node: it resolves only Services, under their standard DNS names
// (https://github.com/kubernetes/dns/blob/master/docs/specification.md).
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// TTL of answers; a Service may be deleted and recreated at any time.
const seconds = 1

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the configuration of who may list Services")
	address := flag.String("address", "", "where names are asked for (UDP)")
	domain := flag.String("domain", "cluster.local", "the domain of the cluster")
	ready := flag.String("ready", "", "where /healthz is answered once all Services are known")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	connection, err := net.ListenPacket("udp", *address)
	if err != nil {
		log.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services()
	lister := services.Lister()
	informer := services.Informer()
	factory.Start(context.Background().Done())
	http.HandleFunc("/healthz", func(answer http.ResponseWriter, _ *http.Request) {
		if !informer.HasSynced() {
			answer.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	go func() { log.Fatal(http.ListenAndServe(*ready, nil)) }()
	suffix := ".svc." + *domain + "."
	buffer := make([]byte, 1500)
	for {
		length, from, err := connection.ReadFrom(buffer)
		if err != nil {
			log.Fatal(err)
		}
		answer, err := respond(lister, suffix, buffer[:length])
		if err != nil {
			log.Print(err)
			continue
		}
		// A client without an answer retries.
		if _, err := connection.WriteTo(answer, from); err != nil {
			log.Print(err)
		}
	}
}

func respond(services listers.ServiceLister, suffix string, request []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(request)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	address, known := find(services, suffix, question.Name.String())
	reply := dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	builder := dnsmessage.NewBuilder(nil, reply)
	if err := builder.StartQuestions(); err != nil {
		return nil, err
	}
	if err := builder.Question(question); err != nil {
		return nil, err
	}
	// A known name without an address of the requested type gets an empty answer section.
	if address.Is4() && question.Type == dnsmessage.TypeA {
		if err := builder.StartAnswers(); err != nil {
			return nil, err
		}
		resource := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: seconds}
		if err := builder.AResource(resource, dnsmessage.AResource{A: address.As4()}); err != nil {
			return nil, err
		}
	}
	return builder.Finish()
}

// Returns the address of the Service of this name, if it has one, and whether the Service exists.
func find(services listers.ServiceLister, suffix, name string) (netip.Addr, bool) {
	short, found := strings.CutSuffix(strings.ToLower(name), suffix)
	if !found {
		return netip.Addr{}, false
	}
	service, namespace, found := strings.Cut(short, ".")
	if !found {
		return netip.Addr{}, false
	}
	known, err := services.Services(namespace).Get(service)
	if err != nil {
		return netip.Addr{}, false
	}
	// A headless Service has "None".
	address, _ := netip.ParseAddr(known.Spec.ClusterIP)
	return address, true
}
